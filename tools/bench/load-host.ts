/** What the loads of the library have in common: 4 KiB random reads by the load generator, and hosts of their own. */
import { randomUUID } from 'node:crypto';
import { connect, type BenchResult, type Controller } from '../../initiator/index.ts';
import type { ControllerBenchOptions } from '../../initiator/index.ts';

export const BYTES = 4096;
/** Before a first command: both reactors are asleep after a tenth of it. */
export const SILENCE_MS = 20;
/** The greedy ones run before the slow one begins and after it has ended. */
export const BEYOND_MS = 500;

type Load = Pick<ControllerBenchOptions, 'queueDepth' | 'bufferArenaBytes'> &
  Partial<Pick<ControllerBenchOptions, 'runtimeMs' | 'commandCount' | 'warmupMs'>>;

/** On all queues of the controller, over all of namespace 1. */
export async function randomReads(controller: Controller, load: Load): Promise<BenchResult> {
  const { lbaCount } = controller.namespace(1);
  const result = await controller.bench({
    ...{ nsid: 1, pattern: 'randread', readPercent: 100, blockBytes: BYTES },
    ...{ firstLba: 0n, lbaCount, verify: false, seed: 1n },
    ...{ runtimeMs: 0, commandCount: 0n, warmupMs: 0, ...load },
  });
  if (result.firstError !== '') throw new Error(result.firstError);
  return result;
}

/** IOPS and latencies of the reads, as the scripts print them. */
export function figuresOf({ read }: BenchResult, seconds: number) {
  const at = (percentile: number): number =>
    Number(read.percentiles.find(([p]) => p === percentile)?.[1] ?? NaN) / 1000;
  const iops = Number(read.commands) / seconds;
  return { iops, bandwidth: iops * BYTES, p50: at(50), p99: at(99) };
}

/** A host that nobody else is, with one I/O queue. */
export function host(address: string, nqn: string, core: number): Promise<Controller> {
  return connect({
    ...{ address, nqn, depth: 128, queues: 1, cores: [core] },
    hostNqn: `nqn.2014-08.org.nvmexpress:uuid:${randomUUID()}`,
    hostId: randomUUID(),
  });
}

export function load(controller: Controller, queueDepth: number, runtimeMs: number) {
  const bufferArenaBytes = 16 << 20;
  return randomReads(controller, { queueDepth, runtimeMs, warmupMs: BEYOND_MS, bufferArenaBytes });
}
