/** `nvmeof controllers`: hosts that are attached to a running target. */
import { z } from 'zod';
import { controllerView } from '../../../target/control/schemas.ts';
import { addSharedOptions, perform } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';

const controllers = z.array(controllerView);

function show(context: CliContext, all: z.output<typeof controllers>): void {
  const rows = all.map(({ subsystemNqn, cntlid, hostNqn, peer, queues, keepAliveMs, ready }) => [
    subsystemNqn,
    String(cntlid),
    hostNqn,
    peer,
    String(queues.length),
    keepAliveMs === 0 ? 'off' : `${keepAliveMs / 1000} s`,
    ready ? 'ready' : 'not enabled',
  ]);
  context.print(
    rows.length === 0
      ? 'No host is attached.'
      : plainTable(['subsystem', 'id', 'host', 'from', 'queues', 'keep alive', 'state'], rows),
  );
}

export const controllersCommand: SubCommand = {
  name: 'controllers',
  define(command, context) {
    addSharedOptions(command)
      .summary('list the hosts attached to a running target')
      .description(
        'Hosts that are attached to a running target: their controllers and how many I/O queues each has.',
      )
      .argument('[nqn]', 'of one subsystem alone')
      .action((nqn: string | undefined, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'controller.list',
          params: { nqn },
          result: controllers,
          show,
        }),
      );
    addExamples(command, [
      ['everybody', 'nvmeof controllers'],
      ['for scripts, with every queue', 'nvmeof controllers NQN --json'],
    ]);
  },
};
