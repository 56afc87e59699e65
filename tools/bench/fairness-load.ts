/**
 * One host at depth 1 beside others at depth 128, all of them controllers of this process on one reactor: what is measured is how
 * the target shares itself out, not how the scheduler of this machine shares a core. Prints JSON.
 *   fairness-load.ts ADDRESS NQN GREEDY SECONDS CORE
 */
import { randomUUID } from 'node:crypto';
import { stdout } from 'node:process';
import { connect, type Controller } from '../../initiator/index.ts';

const [address = '', nqn = '', greedy = '7', seconds = '2', core = '0'] = process.argv.slice(2);
const BYTES = 4096;
/** The greedy ones run before the slow one begins and after it has ended. */
const BEYOND_MS = 500;

function host(): Promise<Controller> {
  return connect({
    ...{ address, nqn, depth: 128, queues: 1, cores: [Number(core)] },
    hostNqn: `nqn.2014-08.org.nvmexpress:uuid:${randomUUID()}`,
    hostId: randomUUID(),
  });
}

function load(controller: Controller, queueDepth: number, runtimeMs: number, warmupMs: number) {
  const namespace = controller.namespace(1);
  return controller.bench({
    ...{ nsid: 1, pattern: 'randread' as const, readPercent: 100, blockBytes: BYTES, queueDepth },
    ...{ firstLba: 0n, lbaCount: namespace.lbaCount, runtimeMs, commandCount: 0n, warmupMs },
    ...{ verify: false, bufferArenaBytes: 16 << 20, seed: 1n },
  });
}

const slow = await host();
const others: Controller[] = [];
for (let i = 0; i < Number(greedy); i++) others.push(await host());
const runtimeMs = Number(seconds) * 1000;
const [result] = await Promise.all([
  load(slow, 1, runtimeMs, BEYOND_MS),
  ...others.map((other) => load(other, 127, runtimeMs + BEYOND_MS, BEYOND_MS)),
]);
const at = (percentile: number): number =>
  Number(result.read.percentiles.find(([p]) => p === percentile)?.[1] ?? NaN) / 1000;
const iops = Number(result.read.commands) / Number(seconds);
for (const controller of [slow, ...others]) await controller.disconnect();
stdout.write(`${JSON.stringify({ iops, bandwidth: iops * BYTES, p50: at(50), p99: at(99) })}\n`);
