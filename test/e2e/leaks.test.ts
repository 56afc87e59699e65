/**
 * Nothing leaks: live counters of the native side, descriptors and memory are after thousands of connections what they
 * were after a hundred. NVMEOF_LEAK_ROUNDS sets how many (2000).
 */
import { expect } from 'chai';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { loopbackAddress } from '../support/processes.ts';

const ROUNDS = process.env['NVMEOF_LEAK_ROUNDS'] ?? '2000';
const WORKER = fileURLToPath(new URL('../support/leak-worker.ts', import.meta.url));
/**
 * The JavaScript heap settles in the first few hundred rounds and then moves by a few MiB. One leaked queue a round, 45 to
 * 175 KiB, would be 45 MiB in a thousand rounds; smaller things are counted, not weighed.
 */
const SETTLING_BYTES = 32 << 20;
const NOISE_BYTES = 12 << 20;

interface Look {
  readonly live: Record<string, number>;
  readonly descriptors: number;
  readonly residentBytes: number;
}

describe('connecting and disconnecting', function () {
  this.timeout(60_000 + Number(ROUNDS) * 60);

  it(`${ROUNDS} rounds leave counters, descriptors and memory as they were`, async () => {
    const child = spawn(
      process.execPath,
      ['--expose-gc', '--import', 'tsx', WORKER, loopbackAddress(), ROUNDS],
      { stdio: ['ignore', 'pipe', 'inherit'] },
    );
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
  });
});
