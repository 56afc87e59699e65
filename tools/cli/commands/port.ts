/** `nvmeof port`: where a running target listens. */
import { Argument } from 'commander';
import { z } from 'zod';
import { done, portView } from '../../../target/control/schemas.ts';
import { hostPort, listenPort, wholeNumber } from '../arguments.ts';
import type { HostPort, ListenPort } from '../arguments.ts';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';

interface AddFlags extends SharedFlags {
  readonly queueDepth?: number;
  readonly maxQueues?: number;
  readonly inCapsule?: number;
}

function show(context: CliContext, ports: readonly z.output<typeof portView>[]): void {
  if (ports.length === 0) {
    context.print('The target listens nowhere.');
    return;
  }
  const rows = ports.map(({ address, port, provider, pathMtu, queueDepth, maxQueues, cores }) => [
    address,
    String(port),
    provider,
    String(pathMtu),
    String(queueDepth),
    String(maxQueues),
    cores?.join(',') ?? 'all',
  ]);
  context.print(
    plainTable(['address', 'port', 'provider', 'MTU', 'depth', 'queues', 'cores'], rows),
  );
}

export const portCommand: SubCommand = {
  name: 'port',
  define(command, context) {
    command
      .summary('list, add and remove ports of a running target')
      .description(
        'Where a running target listens. With a port go the associations that came in there.',
      );
    verb(command, 'list', 'List ports').action((flags: SharedFlags) =>
      perform(context, flags, { method: 'port.list', params: {}, result: z.array(portView), show }),
    );
    verb(command, 'add', 'Listen at one more address or port')
      .addArgument(new Argument('<address[:port][@cores]>', 'where').argParser(listenPort))
      .option(
        '--queue-depth <n>',
        'entries of an I/O queue, at most (default: 128)',
        wholeNumber(1),
      )
      .option('--max-queues <n>', 'I/O queues of one controller (default: 64)', wholeNumber(1))
      .option('--in-capsule <bytes>', 'data in a command capsule (default: 4096)', wholeNumber(0))
      .action((where: ListenPort, flags: AddFlags) =>
        perform(context, flags, {
          method: 'port.add',
          params: {
            ...where,
            queueDepth: flags.queueDepth,
            maxQueues: flags.maxQueues,
            inCapsuleBytes: flags.inCapsule,
          },
          result: portView,
          show: (_, port) => {
            show(context, [port]);
          },
        }),
      );
    verb(command, 'remove', 'End what came in at a port, and listen there no more')
      .addArgument(new Argument('<address[:port]>', 'where').argParser(hostPort))
      .action((where: HostPort, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'port.remove',
          params: where,
          result: done,
          show: () => {
            context.print(`No longer listening at ${where.address} port ${where.port}.`);
          },
        }),
      );
    addExamples(command, [
      ['where it listens', 'nvmeof port list --json'],
      ['a second network, with two cores of its own', 'nvmeof port add 198.51.100.7@2,3'],
      ['away from it', 'nvmeof port remove 198.51.100.7'],
    ]);
  },
};
