/** `nvmeof path`: the paths of a running `nvmeof attach`. */
import { Argument } from 'commander';
import type { Command } from 'commander';
import { hostPort } from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { PATH_POLICIES } from '../host/methods.ts';
import { callAttach, oneAttach } from '../host/running.ts';
import { pathView } from '../host/view.ts';

interface Flags {
  readonly socket?: string;
  readonly json?: boolean;
}

function verb(parent: Command, nameAndArguments: string, summary: string): Command {
  return parent
    .command(nameAndArguments)
    .summary(summary)
    .description(`${summary}.`)
    .option('--verbose', 'show where an error came from')
    .option(
      '--socket <path>',
      'control socket of nvmeof attach (default: of the only one that runs)',
    )
    .option('--json', 'print the answer as JSON');
}

async function perform(
  context: CliContext,
  flags: Flags,
  [method, params]: readonly [method: string, params: object],
  show: (answer: unknown) => string,
): Promise<void> {
  const answer = await callAttach(await oneAttach(flags.socket), method, params);
  if (flags.json === true) context.printJson(answer);
  else context.print(show(answer));
}

function showAdded(answer: unknown): string {
  const parsed = pathView.safeParse(answer);
  if (!parsed.success) {
    throw new CliError(ExitCode.failed, 'path.add: nvmeof attach answers in another form', {
      remedy: 'use the nvmeof of the same version, or --json',
    });
  }
  const { endpoint, state, reason } = parsed.data;
  return `Path ${endpoint} is ${state}${reason === '' ? '' : `: ${reason}`}.`;
}

export const pathCommand: SubCommand = {
  name: 'path',
  define(command, context) {
    command
      .summary('add, remove and reset paths of a running attach')
      .description('Changes the paths of a running nvmeof attach, under I/O.');
    verb(command, 'add', 'Add a path; one that cannot be connected at once is tried again')
      .argument('<address[:port]>', 'of the target', hostPort)
      .option('--preferred', 'take it before others in the same ANA state')
      .action((path: HostPort, flags: Flags & { preferred?: boolean }) =>
        perform(
          context,
          flags,
          ['path.add', { ...path, preferred: flags.preferred ?? false }],
          showAdded,
        ),
      );
    verb(command, 'remove <address:port>', 'Remove a path, after its commands have ended').action(
      (endpoint: string, flags: Flags) =>
        perform(context, flags, ['path.remove', { endpoint }], () => `Removed ${endpoint}.`),
    );
    verb(
      command,
      'reset <address:port>',
      'End the association of a path, and connect it again',
    ).action((endpoint: string, flags: Flags) =>
      perform(context, flags, ['path.reset', { endpoint }], () => `Reset ${endpoint}.`),
    );
    verb(command, 'policy', 'Say how commands choose among equal paths')
      .addArgument(new Argument('<policy>', 'from now on').choices(PATH_POLICIES))
      .action((policy: string, flags: Flags) =>
        perform(context, flags, ['policy.set', { policy }], () => `Policy is ${policy}.`),
      );
    addExamples(command, [
      ['one more way', 'nvmeof path add 192.0.2.129'],
      ['before its cable is pulled', 'nvmeof path remove 192.0.2.129:4420'],
      ['by the number of commands in flight', 'nvmeof path policy queue-depth'],
      ['for scripts', 'nvmeof path add 192.0.2.129 --json'],
    ]);
  },
};
