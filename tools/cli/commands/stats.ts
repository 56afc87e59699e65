/** `nvmeof stats [ADDRESS[:PORT]]`: what a running target does, every second, as iostat shows disks. */
import { z } from 'zod';
import { messageOf } from '../../../native/common/errors.ts';
import type { TargetStatistics } from '../../../target/index.ts';
import { METRICS_PORT, metricsEndpoint, seconds, wholeNumber } from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { groupBy } from '../statistics/group-by.ts';
import { rates } from '../statistics/rates.ts';
import type { QueueRates, Rates } from '../statistics/rates.ts';
import { microseconds, plainTable } from '../tables.ts';

interface Flags {
  readonly interval: number;
  readonly count?: number;
  readonly queues?: boolean;
  readonly json?: boolean;
}

const number = z.number();
const text = z.string();
const snapshot = z.object({
  atMs: number,
  queues: z.array(
    z.object({
      ...{ id: number, cntlid: number, qid: number, reactor: number, depth: number },
      ...{ subsystemNqn: text, hostNqn: text, hostId: text, peer: text },
      ...{ reads: number, writes: number, others: number, errors: number },
      ...{ bytesRead: number, bytesWritten: number },
      latency: z.array(z.tuple([number, number])),
    }),
  ),
  reactors: z.array(
    z.object({
      ...{ index: number, core: number, busyNs: number, idleNs: number, cpuNs: number },
      ...{ ioQueues: number, adminQueues: number },
    }),
  ),
  counters: z.record(text, number),
});

async function look({ address, port }: HostPort): Promise<TargetStatistics> {
  const host = address.includes(':') ? `[${address}]` : address;
  try {
    const response = await fetch(`http://${host}:${port}/statistics`, {
      signal: AbortSignal.timeout(5000),
    });
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return snapshot.parse(await response.json());
  } catch (error) {
    const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
    throw new CliError(
      ExitCode.failed,
      `no statistics from ${host}:${port}: ${cause instanceof z.ZodError ? 'this is no nvmeof target' : messageOf(cause)}`,
      { remedy: `start the target with: nvmeof target … --metrics ${host}:${port}` },
    );
  }
}

const whole = (value: number): string => Math.round(value).toLocaleString('en-US');
const megabytes = (value: number): string => (value / 1e6).toFixed(1);
const percent = (value: number): string => `${(value * 100).toFixed(0)} %`;
const latency = (ns: number | undefined): string => (ns === undefined ? '-' : microseconds(ns));
/** 0 of 0 is no ratio. */
const each = (many: number, one: number): string => (one > 0 ? (many / one).toFixed(1) : '-');

function sum(all: readonly QueueRates[], key: 'reads' | 'writes' | 'others' | 'errors'): number {
  return all.reduce((total, one) => total + one[key], 0);
}

function queueTable(all: readonly QueueRates[]): string {
  return plainTable(
    [
      'host',
      'controller',
      'queue',
      'reactor',
      'read/s',
      'write/s',
      'read MB/s',
      'write MB/s',
    ].concat(['other/s', 'error/s', 'p50', 'p99']),
    all.map((rate) => [
      rate.queue.hostNqn,
      ...[rate.queue.cntlid, rate.queue.qid, rate.queue.reactor].map(String),
      ...[whole(rate.reads), whole(rate.writes)],
      ...[megabytes(rate.bytesRead), megabytes(rate.bytesWritten)],
      ...[whole(rate.others), whole(rate.errors), latency(rate.p50), latency(rate.p99)],
    ]),
  );
}

function reactorTable({ reactors }: Rates): string {
  return plainTable(
    ['reactor', 'core', 'I/O queues', 'busy', 'CPU', 'sleeps/s', 'polls/s'],
    reactors.map(({ index, core, ioQueues, busy, cpu, sleeps, iterations }) => [
      ...[String(index), core < 0 ? '-' : String(core), String(ioQueues)],
      ...[percent(busy), percent(cpu), whole(sleeps), whole(iterations)],
    ]),
  );
}

/** The network in one line, the rest of what slows things down in another when there is any. */
function transportLines({ perSecond: rate }: Rates): string[] {
  const [received, messages] = [rate('soft.rx.packets'), rate('socket.receive_messages')];
  const [sent, trains] = [rate('soft.tx.packets'), rate('soft.tx.trains')];
  const acks = rate('soft.responder.acks');
  const troubles = [
    ['retransmissions', rate('soft.requester.retransmits')],
    ['by timeout', rate('soft.requester.timeouts')],
    ['by NAK', rate('soft.requester.naks')],
    ['receivers not ready', rate('soft.requester.receiver_not_ready')],
    ['bad ICRC', rate('soft.rx.bad_icrc')],
    ['on the wrong reactor', rate('soft.rx.wrong_reactor')],
    ['dropped, socket full', rate('socket.dropped_full')],
    ['waits for buffers', rate('target.bufferWaits')],
  ] as const;
  const noticed = troubles.filter(([, value]) => value > 0);
  return [
    `packets/s: ${whole(received)} in (${each(received, messages)} a message), ` +
      `${whole(sent)} out (${each(sent, trains)} a train), ${whole(acks)} ACKs`,
    ...(noticed.length === 0
      ? []
      : [`per second: ${noticed.map(([name, value]) => `${whole(value)} ${name}`).join(', ')}`]),
  ];
}

/** The queues of a host in a subsystem as one. */
function byHost(all: readonly QueueRates[]): string {
  const groups = groupBy(all, ({ queue }) => `${queue.subsystemNqn} ${queue.hostNqn}`);
  const slowest = (values: readonly (number | undefined)[]): number | undefined => {
    const known = values.filter((value) => value !== undefined);
    return known.length === 0 ? undefined : Math.max(...known);
  };
  return plainTable(
    ['host', 'queues', 'read/s', 'write/s', 'read MB/s', 'write MB/s', 'other/s', 'error/s'].concat(
      ['p50', 'p99'],
    ),
    groups.map((members) => [
      members[0]?.queue.hostNqn ?? '',
      String(members.length),
      ...[whole(sum(members, 'reads')), whole(sum(members, 'writes'))],
      megabytes(members.reduce((total, { bytesRead }) => total + bytesRead, 0)),
      megabytes(members.reduce((total, { bytesWritten }) => total + bytesWritten, 0)),
      ...[whole(sum(members, 'others')), whole(sum(members, 'errors'))],
      latency(slowest(members.map(({ p50 }) => p50))),
      latency(slowest(members.map(({ p99 }) => p99))),
    ]),
  );
}

function ratesJson(result: Rates): unknown {
  const { seconds: length, queues, reactors, perSecond } = result;
  return {
    seconds: length,
    queues: queues.map(({ queue, ...rest }) => ({
      ...{ hostNqn: queue.hostNqn, subsystemNqn: queue.subsystemNqn, cntlid: queue.cntlid },
      ...{ qid: queue.qid, reactor: queue.reactor, ...rest },
    })),
    reactors,
    packetsIn: perSecond('soft.rx.packets'),
    packetsOut: perSecond('soft.tx.packets'),
    retransmissions: perSecond('soft.requester.retransmits'),
  };
}

async function stats(context: CliContext, from: HostPort, flags: Flags): Promise<void> {
  let before = await look(from);
  for (let round = 0; flags.count === undefined || round < flags.count; round++) {
    await new Promise((resolve) => setTimeout(resolve, flags.interval));
    const now = await look(from);
    const result = rates(before, now);
    before = now;
    if (flags.json === true) {
      context.printJson(ratesJson(result));
      continue;
    }
    context.print(new Date().toLocaleTimeString('en-GB'));
    const table = flags.queues === true ? queueTable(result.queues) : byHost(result.queues);
    context.print(result.queues.length === 0 ? 'No host has I/O queues.' : table);
    context.print(reactorTable(result));
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
      .option('--queues', 'each queue by itself')
      .option('--json', 'print JSON, one object an interval')
      .action((from: HostPort, flags: Flags) => stats(context, from, flags));
    addExamples(command, [
      ['what the hosts do now', 'nvmeof stats'],
      ['each queue, every five seconds', 'nvmeof stats 192.0.2.7:9420 --queues --interval 5s'],
    ]);
  },
};
