/**
 * A target's statistics as Prometheus metrics. Each scrape makes them anew from one snapshot, so nothing is counted twice and
 * what is gone is gone.
 */
import { Registry } from 'prom-client';
import type { Metric } from 'prom-client';
import type { QueuePairCounters } from '../../../native/index.ts';
import type { QueueReport, TargetStatistics } from '../../../target/index.ts';
import { byHost } from './by-host.ts';

type Labels = Readonly<Record<string, string | number>>;
interface Value {
  readonly labels: Labels;
  readonly value: number;
  /** Of a histogram: its parts have names of their own. */
  readonly metricName?: string;
}
interface Family {
  readonly name: string;
  readonly help: string;
  readonly type: 'counter' | 'gauge' | 'histogram';
  values(statistics: TargetStatistics): readonly Value[];
}

/** Bounds of the latency histogram in seconds: 1 µs to 16 s, a factor of two apart. */
const BOUNDS_NS = Array.from({ length: 25 }, (_, index) => 1000 * 2 ** index);

const queueLabels = ({ subsystemNqn, hostNqn, cntlid, qid, reactor }: QueueReport): Labels => ({
  subsystem: subsystemNqn,
  host: hostNqn,
  controller: cntlid,
  queue: qid,
  reactor,
});

function perQueue(pick: (queue: QueueReport) => readonly (readonly [Labels, number])[]) {
  return ({ queues }: TargetStatistics): Value[] =>
    queues.flatMap((queue) =>
      pick(queue).map(([more, value]) => ({ labels: { ...queueLabels(queue), ...more }, value })),
    );
}

function histogram(name: string, labels: Labels, queues: readonly QueueReport[]): Value[] {
  const pairs = queues.flatMap(({ latency }) => latency);
  const below = (bound: number): number =>
    pairs.reduce((sum, [upper, count]) => (upper <= bound ? sum + count : sum), 0);
  const all = below(Infinity);
  const buckets = BOUNDS_NS.map((bound) => ({
    labels: { ...labels, le: bound / 1e9 },
    value: below(bound),
    metricName: `${name}_bucket`,
  }));
  // Of each bucket its upper bound: the sum is an upper bound too.
  const sum = pairs.reduce((total, [upper, count]) => total + upper * count, 0) / 1e9;
  return [
    ...buckets,
    { labels: { ...labels, le: '+Inf' }, value: all, metricName: `${name}_bucket` },
    { labels, value: sum, metricName: `${name}_sum` },
    { labels, value: all, metricName: `${name}_count` },
  ];
}

/** Of all queues of a host in a subsystem: a histogram per queue would be a lot of series. */
function latencies({ queues }: TargetStatistics): Value[] {
  return byHost(queues, (queue) => queue).flatMap((members) => {
    const [first] = members;
    const labels = { subsystem: first?.subsystemNqn ?? '', host: first?.hostNqn ?? '' };
    return histogram('nvmeof_command_service_seconds', labels, members);
  });
}

/** Of the queues on a reactor now: what those that are gone took is not in it any more. */
function reactorLatencies({ queues, reactors }: TargetStatistics): Value[] {
  return reactors.flatMap(({ index, core }) =>
    histogram(
      'nvmeof_reactor_command_service_seconds',
      { reactor: index, core },
      queues.filter(({ reactor }) => reactor === index),
    ),
  );
}

const perQueuePair = (
  pick: (counters: QueuePairCounters) => readonly (readonly [Labels, number])[],
): ReturnType<typeof perQueue> =>
  perQueue(({ transport }) => (transport === undefined ? [] : pick(transport)));

const perReactor =
  (pick: (reactor: TargetStatistics['reactors'][number]) => number) =>
  ({ reactors }: TargetStatistics): Value[] =>
    reactors.map((reactor) => ({
      labels: { reactor: reactor.index, core: reactor.core },
      value: pick(reactor),
    }));

const FAMILIES: readonly Family[] = [
  {
    ...{ name: 'nvmeof_commands_total', type: 'counter', help: 'I/O commands answered' },
    values: perQueue(({ reads, writes, others }) => [
      [{ operation: 'read' }, reads],
      [{ operation: 'write' }, writes],
      [{ operation: 'other' }, others],
    ]),
  },
  {
    ...{
      name: 'nvmeof_bytes_total',
      type: 'counter',
      help: 'bytes of namespaces read and written',
    },
    values: perQueue(({ bytesRead, bytesWritten }) => [
      [{ operation: 'read' }, bytesRead],
      [{ operation: 'write' }, bytesWritten],
    ]),
  },
  {
    ...{ name: 'nvmeof_command_errors_total', type: 'counter', help: 'I/O commands that failed' },
    values: perQueue(({ errors }) => [[{}, errors]]),
  },
  {
    ...{ name: 'nvmeof_command_service_seconds', type: 'histogram' },
    help: 'time from the capsule of an I/O command to its answer, in the target',
    values: latencies,
  },
  {
    ...{ name: 'nvmeof_reactor_command_service_seconds', type: 'histogram' },
    help: 'the same by reactor, of the queues that are there',
    values: reactorLatencies,
  },
  {
    ...{ name: 'nvmeof_queue_packets_total', type: 'counter', help: 'packets of a queue pair' },
    values: perQueuePair(({ packetsIn, packetsOut }) => [
      [{ direction: 'in' }, packetsIn],
      [{ direction: 'out' }, packetsOut],
    ]),
  },
  {
    ...{ name: 'nvmeof_queue_acks_total', type: 'counter', help: 'ACK packets of a queue pair' },
    values: perQueuePair(({ acksIn, acksOut }) => [
      [{ direction: 'in' }, acksIn],
      [{ direction: 'out' }, acksOut],
    ]),
  },
  {
    ...{ name: 'nvmeof_queue_retransmissions_total', type: 'counter' },
    help: 'times a queue pair went back to an earlier packet, by cause',
    values: perQueuePair((pair) => [
      [{ cause: 'timeout' }, pair.retransmitsTimeout],
      [{ cause: 'nak' }, pair.retransmitsNak],
      [{ cause: 'implied' }, pair.retransmitsImplied],
      [{ cause: 'not_ready' }, pair.retransmitsNotReady],
    ]),
  },
  {
    ...{ name: 'nvmeof_reactor_busy_seconds_total', type: 'counter' },
    help: 'time of loop iterations that found work',
    values: perReactor(({ busyNs }) => busyNs / 1e9),
  },
  {
    ...{ name: 'nvmeof_reactor_idle_seconds_total', type: 'counter' },
    help: 'time of loop iterations that found none, and of sleep',
    values: perReactor(({ idleNs }) => idleNs / 1e9),
  },
  {
    ...{ name: 'nvmeof_reactor_cpu_seconds_total', type: 'counter' },
    help: 'processor time of a reactor, user and system',
    values: perReactor(({ cpuNs }) => cpuNs / 1e9),
  },
  {
    ...{ name: 'nvmeof_reactor_io_queues', type: 'gauge', help: 'I/O queues placed on a reactor' },
    values: perReactor(({ ioQueues }) => ioQueues),
  },
  {
    ...{ name: 'nvmeof_reactor_admin_queues', type: 'gauge' },
    help: 'admin queues placed on a reactor',
    values: perReactor(({ adminQueues }) => adminQueues),
  },
  {
    ...{ name: 'nvmeof_reactor_load', type: 'gauge' },
    help: 'what placement goes by: busy share of the last second it measured, and of the queues placed since',
    values: perReactor(({ load }) => load),
  },
  {
    ...{ name: 'nvmeof_reactor_port_info', type: 'gauge' },
    help: '1 for each port whose queues may be placed on a reactor',
    values: ({ reactors }) =>
      reactors.flatMap(({ index, core, ports }) =>
        ports.map((port) => ({ labels: { reactor: index, core, port }, value: 1 })),
      ),
  },
  {
    ...{ name: 'nvmeof_queue_info', type: 'gauge' },
    help: '1 for each I/O queue, with the core it runs on',
    values: ({ queues, reactors }) => {
      const cores = new Map(reactors.map(({ index, core }) => [index, core]));
      return queues.map((queue) => ({
        labels: { ...queueLabels(queue), core: cores.get(queue.reactor) ?? -1 },
        value: 1,
      }));
    },
  },
];

/** Counters that say how something is, not what happened. */
const GAUGES =
  /^live\.|[a-z]_bytes$|\.gso$|\.pcap_failed$|\.connections$|\.queue_pairs$|\.memory\./;
/** They have families of their own. */
const ELSEWHERE = /^reactor\.\d+\.(busyNs|idleNs)$/;

/** 'soft.rx.bad_icrc' is nvmeof_soft_rx_bad_icrc_total; 'reactor.0.sleeps' has its number as a label. */
function flat(name: string, value: number): { family: Family; value: Value } {
  const reactor = /^reactor\.(\d+)\.(.+)$/.exec(name);
  const gauge = GAUGES.test(reactor?.[2] ?? name);
  const plain = reactor ? `reactor_${reactor[2] ?? ''}` : name;
  const snake = plain
    .replaceAll(/([a-z0-9])([A-Z])/g, '$1_$2')
    .replaceAll(/[^A-Za-z0-9]+/g, '_')
    .toLowerCase();
  const labels: Labels = reactor ? { reactor: reactor[1] ?? '' } : {};
  return {
    family: {
      name: `nvmeof_${snake}${gauge ? '' : '_total'}`,
      help: `counter ${reactor ? `reactor.N.${reactor[2] ?? ''}` : name}`,
      type: gauge ? 'gauge' : 'counter',
      values: () => [],
    },
    value: { labels, value },
  };
}

function register(
  registry: Registry,
  { name, help, type }: Family,
  values: readonly Value[],
): void {
  const metric = {
    name,
    get: () => ({ name, help, type, values, aggregator: 'sum' }),
  };
  registry.registerMetric(metric as unknown as Metric);
}

/** In the text format of Prometheus. */
export async function metricsText(statistics: TargetStatistics): Promise<string> {
  const registry = new Registry();
  for (const family of FAMILIES) register(registry, family, family.values(statistics));
  const counters = new Map<string, { family: Family; values: Value[] }>();
  for (const [name, count] of Object.entries(statistics.counters)) {
    if (ELSEWHERE.test(name)) continue;
    const { family, value } = flat(name, count);
    const known = counters.get(family.name);
    if (known) known.values.push(value);
    else counters.set(family.name, { family, values: [value] });
  }
  for (const { family, values } of counters.values()) register(registry, family, values);
  return registry.metrics();
}
