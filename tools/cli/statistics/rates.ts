/** What happened between two snapshots, per second. Pure. */
import type { QueueReport, ReactorReport, TargetStatistics } from '../../../target/index.ts';
import type { QueuePairCounters } from '../../../native/index.ts';

const RATED = ['reads', 'writes', 'others', 'errors', 'bytesRead', 'bytesWritten'] as const;
export type Rated = Record<(typeof RATED)[number], number>;

export interface QueueRates extends Readonly<Rated> {
  readonly queue: QueueReport;
  /** Of its reactor; -1: not pinned. */
  readonly core: number;
  /** Of the commands of the interval, ns; undefined: there was none. */
  readonly p50: number | undefined;
  readonly p99: number | undefined;
  /** Of its queue pair, per second; undefined: the device does not tell. */
  readonly transport: QueuePairCounters | undefined;
}

type Placed = Pick<ReactorReport, 'index' | 'core' | 'ports' | 'ioQueues' | 'adminQueues' | 'load'>;

export interface ReactorRates extends Placed {
  /** Shares of the time, 0 to 1. */
  readonly busy: number;
  readonly cpu: number;
  readonly sleeps: number;
  readonly iterations: number;
  readonly idleIterations: number;
  readonly packetsIn: number;
  readonly packetsOut: number;
  /** Packets to a message received, to a train sent; undefined: there was none. */
  readonly packetsPerMessage: number | undefined;
  readonly packetsPerTrain: number | undefined;
  readonly acksIn: number;
  readonly acksOut: number;
  readonly retransmissions: number;
  /** That came here and belong to another reactor. */
  readonly wrongReactor: number;
  readonly ioUringCalls: number;
  readonly submissionsPerCall: number | undefined;
  /** Now. */
  readonly buffers: number;
  readonly bufferBytes: number;
  /** Of the arena. */
  readonly bufferBytesMax: number;
  readonly bufferWaits: number;
  /** Of the commands of the interval, ns; undefined: there was none. */
  readonly p50: number | undefined;
  readonly p99: number | undefined;
}

export interface Rates {
  readonly seconds: number;
  readonly queues: readonly QueueRates[];
  readonly reactors: readonly ReactorRates[];
  /** Of a counter that only grows, by its name. */
  readonly perSecond: (name: string) => number;
}

/** The smallest bound that `share` of the commands stayed below. */
function quantile(counts: ReadonlyMap<number, number>, share: number): number | undefined {
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  let seen = 0;
  for (const [bound, count] of [...counts].sort(([a], [b]) => a - b)) {
    seen += count;
    if (count > 0 && seen >= total * share) return bound;
  }
  return undefined;
}

function newCounts(now: QueueReport, before: QueueReport | undefined): Map<number, number> {
  const old = new Map(before?.latency ?? []);
  return new Map(now.latency.map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]));
}

function merged(all: readonly ReadonlyMap<number, number>[]): Map<number, number> {
  const sums = new Map<number, number>();
  for (const [bound, count] of all.flatMap((one) => [...one])) {
    sums.set(bound, (sums.get(bound) ?? 0) + count);
  }
  return sums;
}

const QUEUE_PAIR = [
  ...(['packetsIn', 'packetsOut', 'acksIn', 'acksOut'] as const),
  ...(['retransmitsTimeout', 'retransmitsNak'] as const),
  ...(['retransmitsImplied', 'retransmitsNotReady'] as const),
] satisfies readonly (keyof QueuePairCounters)[];

function transportRates(
  now: QueueReport,
  before: QueueReport | undefined,
  seconds: number,
): QueuePairCounters | undefined {
  const { transport } = now;
  if (!transport) return undefined;
  return Object.fromEntries(
    QUEUE_PAIR.map((key) => [key, (transport[key] - (before?.transport?.[key] ?? 0)) / seconds]),
  ) as Record<(typeof QUEUE_PAIR)[number], number>;
}

/** 0 of 0 is no ratio. */
export const ratio = (many: number, one: number): number | undefined =>
  one > 0 ? many / one : undefined;

function reactorRates(
  reactor: ReactorReport,
  { counters }: TargetStatistics,
  perSecond: Rates['perSecond'],
): Omit<ReactorRates, 'busy' | 'cpu' | 'p50' | 'p99'> {
  const { index, core, ports, ioQueues, adminQueues, load } = reactor;
  const rate = (name: string): number => perSecond(`reactor.${index}.${name}`);
  const gauge = (name: string): number => counters[`reactor.${index}.${name}`] ?? 0;
  const [packetsIn, packetsOut] = [rate('soft.rx.packets'), rate('soft.tx.packets')];
  const ioUringCalls = rate('ioUringCalls');
  return {
    ...{ index, core, ports, ioQueues, adminQueues, load },
    ...{ sleeps: rate('sleeps'), iterations: rate('iterations') },
    ...{ idleIterations: rate('idleIterations'), packetsIn, packetsOut },
    packetsPerMessage: ratio(packetsIn, rate('socket.receive_messages')),
    packetsPerTrain: ratio(packetsOut, rate('soft.tx.trains')),
    ...{ acksIn: rate('soft.requester.acks'), acksOut: rate('soft.responder.acks') },
    retransmissions: rate('soft.requester.retransmits'),
    wrongReactor: rate('soft.rx.wrong_reactor'),
    ...{ ioUringCalls, submissionsPerCall: ratio(rate('ioUringSubmissions'), ioUringCalls) },
    ...{ buffers: gauge('live.targetBuffers'), bufferBytes: gauge('live.targetBufferBytes') },
    ...{ bufferBytesMax: gauge('target.buffer_bytes'), bufferWaits: rate('target.bufferWaits') },
  };
}

export function rates(before: TargetStatistics, now: TargetStatistics): Rates {
  const seconds = Math.max((now.atMs - before.atMs) / 1000, 1e-3);
  const earlier = new Map(before.queues.map((queue) => [queue.id, queue]));
  const perSecond = (name: string): number =>
    ((now.counters[name] ?? 0) - (before.counters[name] ?? 0)) / seconds;
  const cores = new Map(now.reactors.map(({ index, core }) => [index, core]));
  const countsOf = new Map(
    now.queues.map((queue) => [queue.id, newCounts(queue, earlier.get(queue.id))]),
  );
  const queues = now.queues.map((queue): QueueRates => {
    const old = earlier.get(queue.id);
    const counts = countsOf.get(queue.id) ?? new Map<number, number>();
    const rated = Object.fromEntries(
      RATED.map((key) => [key, (queue[key] - (old?.[key] ?? 0)) / seconds]),
    ) as Rated;
    return {
      ...{ queue, core: cores.get(queue.reactor) ?? -1, ...rated },
      ...{ p50: quantile(counts, 0.5), p99: quantile(counts, 0.99) },
      transport: transportRates(queue, old, seconds),
    };
  });
  const reactors = now.reactors.map((reactor): ReactorRates => {
    const old = before.reactors.find((other) => other.index === reactor.index);
    const share = (key: 'busyNs' | 'cpuNs'): number =>
      (reactor[key] - (old?.[key] ?? 0)) / 1e9 / seconds;
    const counts = merged(
      now.queues
        .filter((queue) => queue.reactor === reactor.index)
        .flatMap(({ id }) => countsOf.get(id) ?? []),
    );
    return {
      ...reactorRates(reactor, now, perSecond),
      ...{ busy: share('busyNs'), cpu: share('cpuNs') },
      ...{ p50: quantile(counts, 0.5), p99: quantile(counts, 0.99) },
    };
  });
  return { seconds, queues, reactors, perSecond };
}
