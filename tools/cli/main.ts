/**
 * The `nvmeof` command: a table of sub-commands over commander. Each lives in a file of commands/; here are only what
 * all share: global options, help, and how a failure becomes one sentence and an exit code.
 */
import { Command, CommanderError } from 'commander';
import { readFileSync } from 'node:fs';
import { attachCommand } from './commands/attach.ts';
import { benchCommand } from './commands/bench.ts';
import { discoverCommand } from './commands/discover.ts';
import { doctorCommand } from './commands/doctor.ts';
import { failoverTestCommand } from './commands/failover-test.ts';
import { fioCommand } from './commands/fio.ts';
import { idCtrlCommand, idNsCommand } from './commands/identify.ts';
import { infoCommand } from './commands/info.ts';
import { readCommand } from './commands/read.ts';
import { statsCommand } from './commands/stats.ts';
import { targetCommand } from './commands/target.ts';
import { writeCommand } from './commands/write.ts';
import { CliContext } from './context.ts';
import type { CliStreams, SubCommand } from './context.ts';
import { ExitCode } from './exit-codes.ts';
import { describeFailure } from './failures.ts';
import { exitCodeHelp } from './help.ts';

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
  fioCommand,
  failoverTestCommand,
  statsCommand,
  doctorCommand,
];

/** package.json is one folder up from the sources' root and from dist/. */
function version(): string {
  for (const path of ['../../package.json', '../../../package.json']) {
    try {
      const text = readFileSync(new URL(path, import.meta.url), 'utf8');
      return (JSON.parse(text) as { version: string }).version;
    } catch {
      continue;
    }
  }
  return 'unknown';
}

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
