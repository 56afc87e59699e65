/** What the exit codes of `nvmeof` mean. `nvmeof --help` and the documentation print this table. */
export const ExitCode = Object.freeze({
  ok: 0,
  failed: 1,
  usage: 2,
  cannotConnect: 3,
  nvmeStatus: 4,
  dataMismatch: 5,
  disconnected: 6,
});

export type ExitCode = (typeof ExitCode)[keyof typeof ExitCode];

export const exitCodeMeanings: readonly (readonly [ExitCode, string])[] = [
  [ExitCode.ok, 'success'],
  [ExitCode.failed, 'the operation failed (a file, a resource, a check of doctor)'],
  [ExitCode.usage, 'the command line or the configuration file is wrong'],
  [
    ExitCode.cannotConnect,
    'no connection: nobody answers, port unreachable, rejected, unknown NQN',
  ],
  [ExitCode.nvmeStatus, 'the controller answered a command with an error status'],
  [ExitCode.dataMismatch, 'data read back is not the data written'],
  [
    ExitCode.disconnected,
    'the connection was lost on the way, or a command was not answered in time',
  ],
];
