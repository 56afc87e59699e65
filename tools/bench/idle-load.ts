/**
 * Connected queues that do nothing: what they cost the target, and how long the first command after silence takes. The CPU
 * time of the whole target is taken, its JavaScript included, which answers Keep Alive. Prints JSON.
 *   idle-load.js ADDRESS NQN QUEUES SECONDS CORE PID
 */
import { stdout } from 'node:process';
import { connect, type Controller } from '../../initiator/index.ts';
import { processUsage } from '../target-process.ts';
import { randomReads, SILENCE_MS } from './load-host.ts';

const [address = '', nqn = '', queues = '64', seconds = '2', core = '0', pid = '0'] =
  process.argv.slice(2);
const KEEP_ALIVE_MS = 5000;
const SAMPLES = 25;

const sleep = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

function host(count: number): Promise<Controller> {
  const keepAliveMs = KEEP_ALIVE_MS;
  return connect({ address, nqn, queues: count, depth: 32, keepAliveMs, cores: [Number(core)] });
}

/** One read on one queue, in ns. */
async function firstRead(controller: Controller): Promise<bigint> {
  const one = { queueDepth: 1, commandCount: 1n, bufferArenaBytes: 1 << 20 };
  const { read } = await randomReads(controller, one);
  return read.latencyMax;
}

const lone = await host(1);
const others = await host(Number(queues) - 1);
await sleep(500);
const before = processUsage(Number(pid)).cpuSeconds;
const began = performance.now();
await sleep(Number(seconds) * 1000);
const used = processUsage(Number(pid)).cpuSeconds - before;
const cpuShare = used / ((performance.now() - began) / 1000);
const latencies: bigint[] = [];
for (let sample = 0; sample < SAMPLES; sample++) {
  latencies.push(await firstRead(lone));
  await sleep(SILENCE_MS);
}
latencies.sort((a, b) => Number(a - b));
const at = (share: number): number => Number(latencies[Math.floor(SAMPLES * share)]) / 1000;
await others.disconnect();
await lone.disconnect();
stdout.write(
  `${JSON.stringify({ iops: 0, bandwidth: 0, cpuShare, p50: at(0.5), p99: at(0.99) })}\n`,
);
