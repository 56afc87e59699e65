/**
 * docs/durability.md, tested for the killed process: answered writes are in the file, and a block holds nothing but one of
 * the values that were written to it.
 */
import { expect } from 'chai';
import { readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect, type Controller } from '../../initiator/index.ts';
import { startTarget, temporaryFolder } from '../support/processes.ts';

const BLOCKS = 1024;
const BLOCK = 4096;

/** Writes generation after generation to every block until the connection breaks; returns what was answered. */
async function writeUntilDeath(
  controller: Controller,
  onProgress: (writes: number) => void,
): Promise<{
  readonly answered: Uint32Array;
  readonly tried: Uint32Array;
}> {
  const namespace = controller.namespace(1);
  const answered = new Uint32Array(BLOCKS);
  const tried = new Uint32Array(BLOCKS);
  let writes = 0;
  let dead = false;
  async function lane(first: number, step: number): Promise<void> {
    for (let lba = first; !dead; lba = (lba + step) % BLOCKS) {
      const generation = (tried[lba] ?? 0) + 1;
      tried[lba] = generation;
      const data = Buffer.alloc(BLOCK);
      for (let i = 0; i < BLOCK; i += 8) {
        data.writeUInt32LE(generation, i);
        data.writeUInt32LE(lba, i + 4);
      }
      try {
        await namespace.write(lba, data);
      } catch {
        dead = true;
        return;
      }
      answered[lba] = generation;
      onProgress(++writes);
    }
  }
  // 32 lanes over disjoint blocks: no two writes to one block are in flight.
  await Promise.all(Array.from({ length: 32 }, (_, i) => lane(i, 32)));
  return { answered, tried };
}

describe('durability', function () {
  this.timeout(60_000);

  for (const cache of ['write-back', 'write-through']) {
    it(`${cache}: what was answered before kill -9 is in the file`, async () => {
      const folder = temporaryFolder();
      const path = join(folder.path, 'disk.img');
      writeFileSync(path, '');
      truncateSync(path, BLOCKS * BLOCK);
      const target = await startTarget(['--export', `${path},bs=4096,cache=${cache}`]);
      const controller = await connect({ address: target.address, nqn: target.nqn });
      controller.on('disconnected', () => undefined);
      const { answered, tried } = await writeUntilDeath(controller, (writes) => {
        if (writes === 3000) target.process.child.kill('SIGKILL');
      });
      await target.process.ended();
      await controller.disconnect().catch(() => undefined);

      const file = readFileSync(path);
      const wrong: string[] = [];
      for (let lba = 0; lba < BLOCKS; lba++) {
        const block = file.subarray(lba * BLOCK, (lba + 1) * BLOCK);
        const generation = block.readUInt32LE(0);
        const low = answered[lba] ?? 0;
        const high = tried[lba] ?? 0;
        if (generation < low || generation > high) {
          wrong.push(`block ${lba} holds write ${generation}, answered was ${low} of ${high}`);
        }
        for (let i = 0; i < BLOCK && generation > 0; i += 8) {
          if (block.readUInt32LE(i) !== generation || block.readUInt32LE(i + 4) !== lba) {
            wrong.push(`block ${lba} is torn at byte ${i}`);
            break;
          }
        }
      }
      expect(wrong).to.deep.equal([]);
      expect(answered.reduce((a, b) => a + b, 0)).to.be.at.least(3000);
      folder.remove();
    });
  }
});
