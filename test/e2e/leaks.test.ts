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
/** Noise of the JavaScript heap. One leaked connection a round would be several hundred MiB. */
const NOISE_BYTES = 8 << 20;

interface Look {
  readonly live: Record<string, number>;
  readonly descriptors: number;
  readonly residentBytes: number;
}

describe('connecting and disconnecting', function () {
  this.timeout(180_000);

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
    const { before, after } = JSON.parse(out) as { before: Look; after: Look };
    expect(after.live).to.deep.equal(before.live);
    expect(after.descriptors).to.equal(before.descriptors);
    expect(after.residentBytes - before.residentBytes).to.be.lessThan(NOISE_BYTES);
  });
});
