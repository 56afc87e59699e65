/** `nvmeof host`: which hosts may connect to a subsystem of a running target. */
import type { z } from 'zod';
import { hostRules } from '../../../target/control/schemas.ts';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';

interface SetFlags extends SharedFlags {
  readonly any?: boolean;
}

function show(context: CliContext, { allowAnyHost, hosts }: z.output<typeof hostRules>): void {
  if (allowAnyHost) context.print('Any host may connect.');
  else if (hosts.length === 0) context.print('No host may connect.');
  for (const host of hosts) context.print(host);
}

export const hostCommand: SubCommand = {
  name: 'host',
  define(command, context) {
    command
      .summary('say which hosts may connect to a subsystem of a running target')
      .description(
        'The hosts of a subsystem. When a command ends, no write of a host that may no longer connect comes any more.',
      );
    for (const [name, summary] of [
      ['add', 'Let a host connect'],
      ['remove', 'Let a host no longer connect, and end its controllers'],
    ] as const) {
      verb(command, `${name} <nqn> <host-nqn>`, summary).action(
        (nqn: string, host: string, flags: SharedFlags) =>
          perform(context, flags, {
            method: `host.${name}`,
            params: { nqn, host },
            result: hostRules,
            show,
          }),
      );
    }
    verb(
      command,
      'set <nqn> [host-nqns...]',
      'Name the hosts that may connect: these and no others',
    )
      .option('--any', 'any host, listed or not')
      .action((nqn: string, hosts: string[], flags: SetFlags) =>
        perform(context, flags, {
          method: 'host.set',
          params: { nqn, hosts, allowAnyHost: flags.any ?? false },
          result: hostRules,
          show,
        }),
      );
    addExamples(command, [
      ['one more', 'nvmeof host add NQN nqn.2014-08.org.nvmexpress:uuid:…'],
      ['two, and no others', 'nvmeof host set NQN HOSTNQN1 HOSTNQN2 --json'],
      ['whoever comes', 'nvmeof host set NQN --any'],
    ]);
  },
};
