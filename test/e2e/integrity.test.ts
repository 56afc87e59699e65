/**
 * Data integrity over loopback: several initiator processes read and write random sizes at queue depth 64 in disjoint
 * regions of one exported file; afterwards the file itself, read outside the target, holds what each of them believes.
 * NVMEOF_INTEGRITY_SECONDS sets the length (10; the long suite takes several minutes).
 */
import { expect } from 'chai';
import { spawn } from 'node:child_process';
import { createHash, randomInt } from 'node:crypto';
import { once } from 'node:events';
import { openSync, readSync, closeSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { startTarget, temporaryFolder } from '../support/processes.ts';

const SECONDS = Number(process.env['NVMEOF_INTEGRITY_SECONDS'] ?? 10);
const WORKER = fileURLToPath(new URL('../support/integrity-worker.ts', import.meta.url));
const WORKERS = 3;
const REGION_BYTES = 8 << 20;

interface WorkerResult {
  readonly commands: number;
  readonly sha256: string;
}

async function runWorker(args: readonly (string | number)[]): Promise<WorkerResult> {
  const child = spawn(process.execPath, ['--import', 'tsx', WORKER, ...args.map(String)], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let out = '';
  let error = '';
  child.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (error += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`worker ${args.join(' ')} ended with ${String(code)}:\n${error}`);
  return JSON.parse(out) as WorkerResult;
}

function hashOfRegion(path: string, offset: number, length: number): string {
  const file = openSync(path, 'r');
  const bytes = Buffer.alloc(length);
  readSync(file, bytes, 0, length, offset);
  closeSync(file);
  return createHash('sha256').update(bytes).digest('hex');
}

describe('data integrity', function () {
  this.timeout((SECONDS + 60) * 1000);

  for (const [name, options, blockSize] of [
    ['512-byte blocks, page cache', 'bs=512', 512],
    ['4096-byte blocks, write-through', 'bs=4096,cache=write-through', 4096],
  ] as const) {
    it(`${WORKERS} hosts on one file, ${name}`, async () => {
      const folder = temporaryFolder();
      const path = join(folder.path, 'disk.img');
      writeFileSync(path, '');
      truncateSync(path, WORKERS * REGION_BYTES);
      const target = await startTarget(['--export', `${path},${options}`]);
      const blocks = REGION_BYTES / blockSize;
      const seed = Number(process.env['NVMEOF_SEED'] ?? randomInt(1 << 30));
      const half = SECONDS / 2;
      try {
        const results = await Promise.all(
          Array.from({ length: WORKERS }, (_, i) =>
            runWorker([target.address, target.nqn, 1, i * blocks, blocks, half, seed + i]),
          ),
        );
        results.forEach((result, i) => {
          expect(result.commands, `worker ${i}, seed ${seed}`).to.be.greaterThan(100);
          const hash = hashOfRegion(path, i * REGION_BYTES, REGION_BYTES);
          expect(hash, `region ${i}, seed ${seed}`).to.equal(result.sha256);
        });
      } finally {
        const end = await target.stop();
        folder.remove();
        expect(end.code, end.stderr).to.equal(0);
      }
    });
  }
});
