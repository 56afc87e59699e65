/** What happened between two snapshots, per second. Pure. */
import type { QueueReport, ReactorReport, TargetStatistics } from '../../../target/index.ts';

const RATED = ['reads', 'writes', 'others', 'errors', 'bytesRead', 'bytesWritten'] as const;
export type Rated = Record<(typeof RATED)[number], number>;

export interface QueueRates extends Readonly<Rated> {
  readonly queue: QueueReport;
  /** Of its reactor; -1: not pinned. */
  readonly core: number;
  /** Of the commands of the interval, ns; undefined: there was none. */
  readonly p50: number | undefined;
  readonly p99: number | undefined;
}

type Placed = Pick<ReactorReport, 'index' | 'core' | 'ports' | 'ioQueues' | 'adminQueues' | 'load'>;

export interface ReactorRates extends Placed {
  /** Shares of the time, 0 to 1. */
  readonly busy: number;
  readonly cpu: number;
  readonly sleeps: number;
  readonly iterations: number;
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

export function rates(before: TargetStatistics, now: TargetStatistics): Rates {
  const seconds = Math.max((now.atMs - before.atMs) / 1000, 1e-3);
  const earlier = new Map(before.queues.map((queue) => [queue.id, queue]));
  const perSecond = (name: string): number =>
    ((now.counters[name] ?? 0) - (before.counters[name] ?? 0)) / seconds;
  const cores = new Map(now.reactors.map(({ index, core }) => [index, core]));
  const queues = now.queues.map((queue): QueueRates => {
    const old = earlier.get(queue.id);
    const counts = newCounts(queue, old);
    const rated = Object.fromEntries(
      RATED.map((key) => [key, (queue[key] - (old?.[key] ?? 0)) / seconds]),
    ) as Rated;
    const core = cores.get(queue.reactor) ?? -1;
    return { queue, core, ...rated, p50: quantile(counts, 0.5), p99: quantile(counts, 0.99) };
  });
  const reactors = now.reactors.map((reactor): ReactorRates => {
    const { index, core, ports, ioQueues, adminQueues, load } = reactor;
    const old = before.reactors.find((other) => other.index === index);
    const share = (key: 'busyNs' | 'cpuNs'): number =>
      (reactor[key] - (old?.[key] ?? 0)) / 1e9 / seconds;
    return {
      ...{ index, core, ports, ioQueues, adminQueues, load },
      ...{ busy: share('busyNs'), cpu: share('cpuNs') },
      sleeps: perSecond(`reactor.${index}.sleeps`),
      iterations: perSecond(`reactor.${index}.iterations`),
    };
  });
  return { seconds, queues, reactors, perSecond };
}
