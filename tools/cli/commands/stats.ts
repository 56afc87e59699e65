/** `nvmeof stats [ADDRESS[:PORT]]`: what a running target does, every second, as iostat shows disks. */
import { METRICS_PORT, metricsEndpoint, seconds, wholeNumber } from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { rates } from '../statistics/rates.ts';
import { fetchStatistics } from '../statistics/snapshot.ts';
import {
  explainTable,
  hostTable,
  queuePairTable,
  queueTable,
  ratesJson,
  reactorTable,
  transportLines,
} from '../statistics/tables.ts';

interface Flags {
  readonly interval: number;
  readonly count?: number;
  readonly queues?: boolean;
  readonly reactors?: boolean;
  readonly json?: boolean;
}

async function stats(context: CliContext, from: HostPort, flags: Flags): Promise<void> {
  let before = await fetchStatistics(from);
  for (let round = 0; flags.count === undefined || round < flags.count; round++) {
    await new Promise((resolve) => setTimeout(resolve, flags.interval));
    const now = await fetchStatistics(from);
    const result = rates(before, now);
    before = now;
    if (flags.json === true) {
      context.printJson(ratesJson(result));
      continue;
    }
    context.print(new Date().toLocaleTimeString('en-GB'));
    const table = flags.queues === true ? queueTable(result.queues) : hostTable(result.queues);
    context.print(result.queues.length === 0 ? 'No host has I/O queues.' : table);
    const pairs = flags.queues === true ? queuePairTable(result.queues) : '';
    if (pairs !== '') context.print(pairs);
    context.print(reactorTable(result));
    if (flags.reactors === true) context.print(explainTable(result));
    for (const line of transportLines(result)) context.print(line);
    context.print();
  }
}

export const statsCommand: SubCommand = {
  name: 'stats',
  define(command, context) {
    command
      .summary('show what a running target does, second by second')
      .description(
        'Shows the load of each host, the reactors and the network of a target that was started with --metrics: ' +
          'rates of the last interval, latencies from capsule to answer inside the target.',
      )
      .argument(
        '[address[:port]]',
        `where the target serves metrics (default: 127.0.0.1:${METRICS_PORT})`,
        metricsEndpoint,
        metricsEndpoint('127.0.0.1'),
      )
      .option('--interval <time>', 'between two looks (default: 1s)', seconds, 1000)
      .option('--count <n>', 'stop after so many intervals', wholeNumber(1))
      .option('--queues', 'each queue by itself: its reactor and core, rates, packets')
      .option('--reactors', 'more of each reactor: polls, packets, batches, buffers, latency')
      .option('--json', 'print JSON, one object an interval')
      .action((from: HostPort, flags: Flags) => stats(context, from, flags));
    addExamples(command, [
      ['what the hosts do now', 'nvmeof stats'],
      ['each queue, every five seconds', 'nvmeof stats 192.0.2.7:9420 --queues --interval 5s'],
    ]);
  },
};
