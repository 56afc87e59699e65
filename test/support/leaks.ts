/** Runs leak-worker.ts and path-loss-worker.ts, and expects that their rounds left nothing behind. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import type { Look } from './look.ts';

/** How a path is lost: see path-loss-worker.ts. */
export type LossWay = 'closed' | 'reset' | 'replaced';

/**
 * The JavaScript heap settles in the first few hundred rounds and then moves by a few MiB. One leaked queue a round, 45 to
 * 175 KiB, would be 45 MiB in a thousand rounds; smaller things are counted, not weighed.
 */
const SETTLING_BYTES = 32 << 20;
const NOISE_BYTES = 12 << 20;
/** After a garbage collection; an object of 1 KiB that stays each round would be 5 MiB in 5,000. */
const HEAP_NOISE_BYTES = 3 << 20;

/** A Keep Alive that is on its way has no timer for a moment. */
const TIMERS_NOISE = 4;

/** Controllers that live register memory for commands as they need it, in a few sizes. */
const POOL_NOISE = 4;

async function expectFlat(
  worker: string,
  args: readonly string[],
  liveNoise: number,
): Promise<void> {
  const path = fileURLToPath(new URL(worker, import.meta.url));
  const child = spawn(process.execPath, ['--expose-gc', '--import', 'tsx', path, ...args], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  expect(code).to.equal(0);
  const [before, between, after] = JSON.parse(out) as [Look, Look, Look];
  for (const look of [between, after]) {
    expect(look.live).to.have.all.keys(before.live);
    for (const [name, count] of Object.entries(look.live)) {
      expect(count, name).to.be.closeTo(before.live[name] ?? 0, liveNoise);
    }
    expect(look.descriptors).to.equal(before.descriptors);
    expect(look.timers).to.be.closeTo(before.timers, TIMERS_NOISE);
  }
  expect(after.residentBytes - before.residentBytes).to.be.lessThan(SETTLING_BYTES);
  expect(after.residentBytes - between.residentBytes).to.be.lessThan(NOISE_BYTES);
  expect(after.heapBytes - between.heapBytes).to.be.lessThan(HEAP_NOISE_BYTES);
}

/** Connecting and disconnecting. `nqn`: of a target that runs already. */
export function expectNoLeaks(address: string, rounds: number, nqn?: string): Promise<void> {
  const args = [address, String(rounds)];
  return expectFlat('leak-worker.ts', nqn === undefined ? args : [...args, nqn], 0);
}

/** Losing a path and getting it back. */
export function expectNoLeaksOfPaths(way: LossWay, rounds: number): Promise<void> {
  return expectFlat('path-loss-worker.ts', [way, String(rounds)], POOL_NOISE);
}
