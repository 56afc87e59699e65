/** Runs leak-worker.ts, and expects that its rounds left nothing behind. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';

export interface Look {
  readonly live: Record<string, number>;
  readonly descriptors: number;
  readonly residentBytes: number;
}

const WORKER = fileURLToPath(new URL('leak-worker.ts', import.meta.url));
/**
 * The JavaScript heap settles in the first few hundred rounds and then moves by a few MiB. One leaked queue a round, 45 to
 * 175 KiB, would be 45 MiB in a thousand rounds; smaller things are counted, not weighed.
 */
const SETTLING_BYTES = 32 << 20;
const NOISE_BYTES = 12 << 20;

/** `nqn`: of a target that runs already. */
export async function expectNoLeaks(address: string, rounds: number, nqn?: string): Promise<void> {
  const args = ['--expose-gc', '--import', 'tsx', WORKER, address, String(rounds)];
  const child = spawn(process.execPath, nqn === undefined ? args : [...args, nqn], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  let out = '';
  child.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  expect(code).to.equal(0);
  const [before, between, after] = JSON.parse(out) as [Look, Look, Look];
  for (const look of [between, after]) {
    expect(look.live).to.deep.equal(before.live);
    expect(look.descriptors).to.equal(before.descriptors);
  }
  expect(after.residentBytes - before.residentBytes).to.be.lessThan(SETTLING_BYTES);
  expect(after.residentBytes - between.residentBytes).to.be.lessThan(NOISE_BYTES);
}
