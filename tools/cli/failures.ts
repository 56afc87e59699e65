/** From a thrown value to exit code, sentence and remedy. The classes decide, never the text. */
import {
  ArgumentError,
  CommandTimeoutError,
  ConnectError,
  DisconnectedError,
} from '../../initiator/index.ts';
import { NvmeStatusError, NvmeofError, messageOf } from '../../native/common/errors.ts';
import { CliError } from './context.ts';
import { ROCE_PORT, portOwners } from './doctor/network-checks.ts';
import { SystemView } from './doctor/system-view.ts';
import { ExitCode } from './exit-codes.ts';

export interface Failure {
  readonly exitCode: ExitCode;
  readonly message: string;
  readonly remedy: string | undefined;
}

/** Codes of errors that are the fault of what was typed. */
const USAGE_CODES: ReadonlySet<string> = new Set([
  'CONFIG_INVALID',
  'CONFIG_UNREADABLE',
  'SIZE_INVALID',
  'ADDRESS_INVALID',
  'UUID_INVALID',
]);

function exitCodeOf(error: unknown): ExitCode {
  if (error instanceof ConnectError) return ExitCode.cannotConnect;
  if (error instanceof NvmeStatusError) return ExitCode.nvmeStatus;
  if (error instanceof DisconnectedError) return ExitCode.disconnected;
  if (error instanceof CommandTimeoutError) return ExitCode.disconnected;
  if (error instanceof ArgumentError) return ExitCode.usage;
  if (error instanceof NvmeofError && USAGE_CODES.has(error.code)) return ExitCode.usage;
  return ExitCode.failed;
}

/** What to do about errors of the system, by errno name. */
const SYSTEM_REMEDIES: Readonly<Record<string, string>> = {
  EADDRINUSE: 'nvmeof doctor shows who holds UDP port 4791',
  EADDRNOTAVAIL: 'ip address shows the addresses this machine has',
  EACCES: 'run it as a user who may open it',
  EPERM: 'run it as a user who may do that',
  ENOENT: 'check the path',
  EISDIR: 'name a file, not a folder',
  ENOSPC: 'make room on the file system',
  EMFILE: 'raise the limit of open files: ulimit -n 65536',
};

/** The errno names of an error and of those that caused it. */
function systemCodes(error: unknown): string[] {
  const codes: string[] = [];
  for (let at = error; at instanceof Error && codes.length < 8; at = at.cause) {
    const { code } = at as { readonly code?: unknown };
    codes.push(typeof code === 'string' ? code : '');
  }
  return codes;
}

function portHolders(view: SystemView): string | undefined {
  const owners = portOwners(view).filter(({ pid }) => pid !== undefined && pid !== process.pid);
  if (owners.length === 0) return undefined;
  const names = owners.map(
    ({ pid, command, address }) => `process ${pid ?? 0} (${command ?? '?'}) on ${address}`,
  );
  return `UDP port ${ROCE_PORT} is held by ${names.join(', ')}`;
}

export function describeFailure(error: unknown, view = new SystemView()): Failure {
  if (error instanceof CliError) return error;
  const code = systemCodes(error).find((name) => name in SYSTEM_REMEDIES);
  const general = code === undefined ? undefined : SYSTEM_REMEDIES[code];
  return {
    exitCode: exitCodeOf(error),
    message: messageOf(error),
    remedy: code === 'EADDRINUSE' ? (portHolders(view) ?? general) : general,
  };
}
