/**
 * A path that is lost and made again, over and over, while commands run over it and a second one; in a process of its own, so that
 * nothing but the rounds moves its memory. Paths take turns. Writes what was alive, open and resident after a hundred rounds,
 * after half of the others and after all of them to stdout.
 *   path-loss-worker.ts WAY ROUNDS
 */
import { once } from 'node:events';
import { connectPaths } from '../../initiator/index.ts';
import type { MultipathSubsystem } from '../../initiator/index.ts';
import { NO_FAULTS } from '../../native/common/faults.ts';
import { acquireRuntime } from '../../native/shared-runtime.ts';
import { Target } from '../../target/index.ts';
import { eventually, liveCounters } from './counters.ts';
import type { LossWay } from './leaks.ts';
import { look } from './look.ts';
import type { Look } from './look.ts';
import { Load } from './load.ts';
import { loopbackAddress } from './processes.ts';

const [way, rounds] = process.argv.slice(2);
const NQN = 'nqn.2026-11.io.nvmeof:path-loss';
const WARM_UP_ROUNDS = 100;
const SOON_MS = 20_000;
const LANES = 4;
const COMMANDS_A_ROUND = 4;
/** A silent path is given up after so long; only a round that makes one silent waits for it. */
const SILENT_MS = 25;
const KEEP_ALIVE_MS = 1000;

const addresses = [loopbackAddress(), loopbackAddress()] as const;
const lease = acquireRuntime();
const target = await Target.start(
  {
    ports: addresses.map((address) => ({ address })),
    subsystems: [{ nqn: NQN, namespaces: [{ memory: '4MiB' }] }],
  },
  { faultInjection: true },
);
const subsystem = await connectPaths({
  nqn: NQN,
  paths: addresses.map((address) => ({ address })),
  reconnectDelayMs: 1,
  keepAliveMs: KEEP_ALIVE_MS,
  ...(way === 'reset' ? { commandTimeoutMs: SILENT_MS } : {}),
});

function isLive(address: string): boolean {
  return subsystem.paths.some(
    ({ endpoint, state }) => endpoint === `${address}:4420` && state === 'live',
  );
}

/** Resolves when the path at this address is live, or when it is not. */
async function until(address: string, live: boolean): Promise<void> {
  const signal = AbortSignal.timeout(SOON_MS);
  while (isLive(address) !== live) await once(subsystem, 'pathState', { signal });
}

type Lose = (address: string) => Promise<unknown>;

const WAYS: Readonly<Record<LossWay, Lose>> = {
  /** The target ends the association. */
  closed: async (address) => {
    await target.removePort(address, 4420);
    await until(address, false);
    await target.addPort({ address });
    await until(address, true);
  },
  /** The host gives the association up, and the target still has it: its writes are fenced by a Cross-Controller Reset. */
  reset: async (address) => {
    target.injectFaults({ rules: [{ drop: 1 }] }, address);
    await until(address, false);
    target.injectFaults(NO_FAULTS, address);
    await until(address, true);
  },
  /** The controller is removed, and a new path takes its place. */
  replaced: async (address) => {
    await subsystem.removePath(`${address}:4420`);
    await subsystem.addPath({ address });
  },
};

async function run(lose: Lose, count: number): Promise<void> {
  const load = new Load(subsystem.namespace(1), LANES);
  for (let i = 0; i < count; i++) {
    await lose(addresses[i % 2] ?? '');
    await load.progress(COMMANDS_A_ROUND);
  }
  await load.stop();
}

/** What is lost ends a moment later, at the latest with its Keep Alive timeout. */
async function settle(): Promise<void> {
  const lives = (): boolean => target.controllers.length === 2 && allLive(subsystem) && steady();
  let before = '';
  let since = 0;
  const steady = (): boolean => {
    const now = JSON.stringify(liveCounters(lease));
    if (now !== before) since = performance.now();
    before = now;
    return performance.now() - since > 500;
  };
  await eventually(lives, SOON_MS, () => `two controllers and two live paths: ${before}`);
}

function allLive(of: MultipathSubsystem): boolean {
  return of.paths.length === 2 && of.paths.every(({ state }) => state === 'live');
}

const lose = WAYS[way as LossWay];
const looks: Look[] = [];
await settle();
for (const count of [WARM_UP_ROUNDS, Number(rounds) / 2, Number(rounds) / 2]) {
  await run(lose, count);
  await settle();
  looks.push(look(lease));
}
process.stdout.write(JSON.stringify(looks));
await subsystem.disconnect();
await target.close();
lease.release();
