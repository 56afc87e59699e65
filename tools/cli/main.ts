/**
 * The `nvmeof` command: a table of sub-commands over commander. Each lives in a file of commands/; here are only what
 * all share: global options, help, and how a failure becomes one sentence and an exit code.
 */
import { Command, CommanderError } from 'commander';
import { attachCommand } from './commands/attach.ts';
import { benchCommand } from './commands/bench.ts';
import { discoverCommand } from './commands/discover.ts';
import { doctorCommand } from './commands/doctor.ts';
import { failoverTestCommand } from './commands/failover-test.ts';
import { fioCommand } from './commands/fio.ts';
import { idCtrlCommand, idNsCommand } from './commands/identify.ts';
import { infoCommand } from './commands/info.ts';
import { listSubsysCommand } from './commands/list-subsys.ts';
import { pathCommand } from './commands/path.ts';
import { readCommand } from './commands/read.ts';
import { statsCommand } from './commands/stats.ts';
import { targetCommand } from './commands/target.ts';
import { writeCommand } from './commands/write.ts';
import { configCommand } from './commands/config.ts';
import { controllersCommand } from './commands/controllers.ts';
import { anaCommand } from './commands/ana.ts';
import { hostCommand } from './commands/host.ts';
import { namespaceCommand } from './commands/namespace.ts';
import { portCommand } from './commands/port.ts';
import { referralCommand } from './commands/referral.ts';
import { rpcCommand } from './commands/rpc.ts';
import { subsystemCommand } from './commands/subsystem.ts';
import {
  drainCommand,
  logCommand,
  resumeCommand,
  statusCommand,
  stopCommand,
} from './commands/running.ts';
import { CliContext } from './context.ts';
import type { CliStreams, SubCommand } from './context.ts';
import { ExitCode } from './exit-codes.ts';
import { describeFailure } from './failures.ts';
import { exitCodeHelp } from './help.ts';
import { version } from './version.ts';

export const SUB_COMMANDS: readonly SubCommand[] = [
  targetCommand,
  discoverCommand,
  infoCommand,
  idCtrlCommand,
  idNsCommand,
  readCommand,
  writeCommand,
  benchCommand,
  attachCommand,
  listSubsysCommand,
  pathCommand,
  fioCommand,
  failoverTestCommand,
  statsCommand,
  doctorCommand,
  statusCommand,
  subsystemCommand,
  namespaceCommand,
  hostCommand,
  anaCommand,
  portCommand,
  referralCommand,
  controllersCommand,
  configCommand,
  logCommand,
  drainCommand,
  resumeCommand,
  stopCommand,
  rpcCommand,
];

export function makeProgram(context: CliContext, subCommands = SUB_COMMANDS): Command {
  const { stdout, stderr } = context.streams;
  const program = new Command('nvmeof')
    .description(
      'NVMe over Fabrics on RoCEv2 in user space: exports files and block devices as NVMe ' +
        'namespaces, and connects to such exports.',
    )
    .version(version())
    .option('--verbose', 'show where an error came from')
    .showHelpAfterError('(nvmeof --help shows what there is)')
    .addHelpText('after', exitCodeHelp());
  const output = {
    writeOut: (text: string) => {
      stdout.write(text);
    },
    writeErr: (text: string) => {
      stderr.write(text);
    },
  };
  program.configureOutput(output).exitOverride();
  for (const { name, define } of subCommands) {
    const command = program.command(name).option('--verbose', 'show where an error came from');
    command.configureOutput(output).exitOverride();
    define(command, context);
  }
  return program;
}

/** Runs one command line; resolves with the exit code. */
export async function main(argv: readonly string[], streams: CliStreams): Promise<number> {
  const context = new CliContext(streams);
  // `nvmeof read | head`: a reader that goes away is no failure of ours.
  streams.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(ExitCode.ok);
  });
  try {
    await makeProgram(context).parseAsync([...argv], { from: 'user' });
    return context.exitCode;
  } catch (error) {
    if (error instanceof CommanderError) return error.exitCode === 0 ? ExitCode.ok : ExitCode.usage;
    const failure = describeFailure(error);
    context.note(`nvmeof: ${failure.message}`);
    if (failure.remedy !== undefined) context.note(`  ${failure.remedy}`);
    if (argv.includes('--verbose') && error instanceof Error) context.note(error.stack ?? '');
    return failure.exitCode;
  }
}
