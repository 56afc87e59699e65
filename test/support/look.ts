/** What a process holds: for runs that must leave nothing behind. */
import { readdirSync } from 'node:fs';
import type { RuntimeLease } from '../../native/shared-runtime.ts';

export interface Look {
  /** Native objects: queue pairs, regions, windows, connections, buffers, … */
  readonly live: Readonly<Record<string, number>>;
  readonly descriptors: number;
  readonly timers: number;
  readonly residentBytes: number;
  readonly heapBytes: number;
}

/** Node must run with --expose-gc. */
export function look(lease: RuntimeLease): Look {
  global.gc?.();
  global.gc?.();
  const { rss, heapUsed } = process.memoryUsage();
  return {
    live: Object.fromEntries(
      Object.entries(lease.runtime.door.counters()).filter(([name]) => name.startsWith('live.')),
    ),
    descriptors: readdirSync('/proc/self/fd').length,
    timers: process.getActiveResourcesInfo().filter((kind) => kind === 'Timeout').length,
    residentBytes: rss,
    heapBytes: heapUsed,
  };
}
