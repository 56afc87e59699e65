/** `nvmeof path`: the paths of a running `nvmeof attach`. */
import { Argument } from 'commander';
import type { Command } from 'commander';
import type { z } from 'zod';
import { PATH_POLICIES } from '../../../initiator/index.ts';
import { done } from '../../../target/control/schemas.ts';
import { hostPort } from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
import type { SubCommand } from '../context.ts';
import { verb } from '../control/verb.ts';
import type { Call, SharedFlags } from '../control/verb.ts';
import { addExamples } from '../help.ts';
import { performOnAttach } from '../host/running.ts';
import { pathView } from '../host/view.ts';

const SOCKET = 'control socket of nvmeof attach (default: of the only one that runs)';

const below = (parent: Command, nameAndArguments: string, summary: string): Command =>
  verb(parent, nameAndArguments, summary, SOCKET);

/** Without an answer to show; `said` is what has happened. */
function change(method: string, params: object, said: string): Call<typeof done> {
  return {
    ...{ method, params, result: done },
    show: (context) => {
      context.print(said);
    },
  };
}

function added(path: HostPort & { readonly preferred: boolean }): Call<typeof pathView> {
  return {
    ...{ method: 'path.add', params: path, result: pathView },
    show: (context, { endpoint, state, reason }) => {
      context.print(`Path ${endpoint} is ${state}${reason === '' ? '' : `: ${reason}`}.`);
    },
  };
}

export const pathCommand: SubCommand = {
  name: 'path',
  define(command, context) {
    command
      .summary('add, remove and reset paths of a running attach')
      .description('Changes the paths of a running nvmeof attach, under I/O.');
    const perform = <R extends z.ZodType>(flags: SharedFlags, call: Call<R>): Promise<void> =>
      performOnAttach(context, flags, call);
    below(command, 'add', 'Add a path; one that cannot be connected at once is tried again')
      .argument('<address[:port]>', 'of the target', hostPort)
      .option('--preferred', 'take it before others in the same ANA state')
      .action((path: HostPort, flags: SharedFlags & { preferred?: boolean }) =>
        perform(flags, added({ ...path, preferred: flags.preferred ?? false })),
      );
    below(command, 'remove <address:port>', 'Remove a path, after its commands have ended').action(
      (endpoint: string, flags: SharedFlags) =>
        perform(flags, change('path.remove', { endpoint }, `Removed ${endpoint}.`)),
    );
    below(
      command,
      'reset <address:port>',
      'End the association of a path, and connect it again',
    ).action((endpoint: string, flags: SharedFlags) =>
      perform(flags, change('path.reset', { endpoint }, `Reset ${endpoint}.`)),
    );
    below(command, 'policy', 'Say how commands choose among equal paths')
      .addArgument(new Argument('<policy>', 'from now on').choices(PATH_POLICIES))
      .action((policy: string, flags: SharedFlags) =>
        perform(flags, change('policy.set', { policy }, `Policy is ${policy}.`)),
      );
    addExamples(command, [
      ['one more way', 'nvmeof path add 192.0.2.129'],
      ['before its cable is pulled', 'nvmeof path remove 192.0.2.129:4420'],
      ['by the number of commands in flight', 'nvmeof path policy queue-depth'],
      ['for scripts', 'nvmeof path add 192.0.2.129 --json'],
    ]);
  },
};
