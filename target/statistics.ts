/**
 * What a target did so far, as one snapshot: its I/O queues with their hosts, its reactors, all counters. Tables and metrics are
 * made of two of them, or of one.
 */
import type { Counters } from '../native/common/counters.ts';
import type { QueueStatistics, ReactorInfo } from '../native/index.ts';
import type { QueueSummary } from './events.ts';
import type { PlacementView } from './placement.ts';

export interface QueueReport extends QueueSummary, Omit<QueueStatistics, 'queue' | 'reactor'> {
  /** Unique in the process; a queue that reconnects has another. */
  readonly id: number;
}

export interface ReactorReport {
  readonly index: number;
  /** -1: not pinned. */
  readonly core: number;
  readonly busyNs: number;
  readonly idleNs: number;
  readonly cpuNs: number;
  /** Those whose queues may be placed here, as ADDRESS:PORT. */
  readonly ports: readonly string[];
  readonly ioQueues: number;
  readonly adminQueues: number;
  /** What placement goes by: the busy share of the last second it measured, and of the queues placed since. */
  readonly load: number;
}

export interface TargetStatistics {
  /** Of a clock that only goes forward. */
  readonly atMs: number;
  readonly queues: readonly QueueReport[];
  readonly reactors: readonly ReactorReport[];
  readonly counters: Counters;
}

/** A queue that TypeScript knows and native has figures of. */
export function reportQueues(
  known: ReadonlyMap<number, QueueSummary>,
  figures: readonly QueueStatistics[],
): QueueReport[] {
  return figures.flatMap(({ queue: id, ...rest }) => {
    const summary = known.get(id);
    return summary === undefined ? [] : [{ ...summary, ...rest, id }];
  });
}

export function reportReactor(
  { index, core, busyNs, idleNs, cpuNs }: ReactorInfo,
  placed: Pick<PlacementView, 'ioQueues' | 'adminQueues' | 'load'> | undefined,
  ports: readonly string[],
): ReactorReport {
  const { ioQueues = 0, adminQueues = 0, load = 0 } = placed ?? {};
  return {
    ...{ index, core, ports, ioQueues, adminQueues, load },
    ...{ busyNs: Number(busyNs), idleNs: Number(idleNs), cpuNs: Number(cpuNs) },
  };
}
