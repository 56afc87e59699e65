/**
 * A few queues that work among many that are only connected, all of this process and on one reactor; and what one of the many
 * costs the target's memory. Prints JSON.
 *   many-queues.js ADDRESS NQN IDLE SECONDS CORE PID ACTIVE DEPTH
 */
import process, { stdout } from 'node:process';
import { connect, type Controller } from '../../initiator/index.ts';
import { processUsage } from '../target-process.ts';
import { figuresOf, randomReads } from './load-host.ts';

const [address = '', nqn = '', idleText = '0', seconds = '2', core = '0', ...rest] =
  process.argv.slice(2);
const [pid = '0', activeText = '64', depthText = '8'] = rest;
const [idle, active, depth] = [Number(idleText), Number(activeText), Number(depthText)];
const WARM_UP_MS = 500;
/** What a port grants one controller. */
const QUEUES_MAX = 64;
/** No Keep Alive of many hosts among the load: it is measured elsewhere. */
const KEEP_ALIVE_MS = 120_000;

async function host(queues: number): Promise<Controller> {
  const controller = await connect({
    ...{ address, nqn, queues, depth, keepAliveMs: KEEP_ALIVE_MS, cores: [Number(core)] },
  });
  if (controller.queues.length === queues) return controller;
  throw new Error(`the target grants ${controller.queues.length} of ${queues} queues`);
}

const residentBytes = (): number => processUsage(Number(pid)).residentBytes;

const worker = await host(active);
const hosts = [worker];
const before = residentBytes();
for (let left = idle; left > 0; left -= QUEUES_MAX)
  hosts.push(await host(Math.min(left, QUEUES_MAX)));
const memoryPerQueue = idle === 0 ? undefined : (residentBytes() - before) / idle;
const targetBefore = processUsage(Number(pid)).cpuSeconds;
const hostBefore = process.cpuUsage();
const retransmitted = (): number => worker.counters()['soft.requester.retransmits'] ?? 0;
const retransmittedBefore = retransmitted();
const result = await randomReads(worker, {
  ...{ queueDepth: depth - 1, runtimeMs: Number(seconds) * 1000, warmupMs: WARM_UP_MS },
  bufferArenaBytes: 64 << 20,
});
const targetSeconds = processUsage(Number(pid)).cpuSeconds - targetBefore;
const hostUsage = process.cpuUsage(hostBefore);
const retransmits = retransmitted() - retransmittedBefore;
const figures = figuresOf(result, Number(seconds));
// The load runs while it warms up, too.
const commands = figures.iops * (Number(seconds) + WARM_UP_MS / 1000);
const targetCpu = (targetSeconds / commands) * 1e6;
const hostCpu = (hostUsage.user + hostUsage.system) / commands;
for (const controller of hosts) await controller.disconnect();
stdout.write(
  `${JSON.stringify({ ...figures, hostCpu, targetCpu, retransmits, memoryPerQueue })}\n`,
);
