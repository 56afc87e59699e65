/**
 * What a target did so far, as one snapshot: its I/O queues with their hosts, its reactors, all counters. Tables and metrics are
 * made of two of them, or of one.
 */
import type { Counters } from '../native/common/counters.ts';
import type { Door, QueueStatistics, ReactorInfo } from '../native/index.ts';
import type { Controller } from './controller.ts';
import type { QueueSummary } from './events.ts';
import type { PlacementView } from './placement.ts';
import { endpointsOn } from './port-resources.ts';
import type { Port } from './port.ts';

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
function reportQueues(
  known: ReadonlyMap<number, QueueSummary>,
  figures: readonly QueueStatistics[],
): QueueReport[] {
  return figures.flatMap(({ queue: id, ...rest }) => {
    const summary = known.get(id);
    return summary === undefined ? [] : [{ ...summary, ...rest, id }];
  });
}

function reportReactor(
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

/** Waits for a loop iteration of each reactor. */
export function takeStatistics(
  door: Door,
  controllers: readonly Controller[],
  placement: readonly PlacementView[],
  ports: readonly Port[],
): TargetStatistics {
  const known = new Map(
    controllers.flatMap((controller) =>
      [...controller.ioQueues.values()].map(
        (queue) => [queue.id, controller.queueSummary(queue)] as const,
      ),
    ),
  );
  const placed = new Map(placement.map((view) => [view.reactor, view]));
  return {
    atMs: performance.now(),
    queues: reportQueues(known, door.queueStatistics()),
    reactors: door
      .reactors()
      .filter(({ index }) => placed.has(index))
      .map((reactor) =>
        reportReactor(reactor, placed.get(reactor.index), endpointsOn(ports, reactor.index)),
      ),
    counters: door.counters(),
  };
}
