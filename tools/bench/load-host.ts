/** A host of the fairness loads: one controller with one I/O queue, and 4 KiB random reads on it. */
import { randomUUID } from 'node:crypto';
import { connect, type BenchResult, type Controller } from '../../initiator/index.ts';

export const BYTES = 4096;
/** The greedy ones run before the slow one begins and after it has ended. */
export const BEYOND_MS = 500;

export function host(address: string, nqn: string, core: number): Promise<Controller> {
  return connect({
    ...{ address, nqn, depth: 128, queues: 1, cores: [core] },
    hostNqn: `nqn.2014-08.org.nvmexpress:uuid:${randomUUID()}`,
    hostId: randomUUID(),
  });
}

export function load(
  controller: Controller,
  queueDepth: number,
  runtimeMs: number,
): Promise<BenchResult> {
  const { lbaCount } = controller.namespace(1);
  return controller.bench({
    ...{ nsid: 1, pattern: 'randread', readPercent: 100, blockBytes: BYTES, queueDepth },
    ...{ firstLba: 0n, lbaCount, runtimeMs, commandCount: 0n, warmupMs: BEYOND_MS },
    ...{ verify: false, bufferArenaBytes: 16 << 20, seed: 1n },
  });
}
