/**
 * Every command of a namespace through the library, on every kind of backing and both block sizes: what was written is read,
 * whatever the size and wherever the memory is from, and neighbours are left alone.
 */
import { expect } from 'chai';
import { readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { Controller, Namespace } from '../../initiator/index.ts';
import { NvmeStatusError } from '../../initiator/index.ts';
import type { SubsystemOptions } from '../../target/index.ts';
import { keepLiveCounters } from '../support/counters.ts';
import { failureOf, randomBytes, withTarget } from '../support/in-process.ts';
import { temporaryFolder } from '../support/processes.ts';

type NamespaceOptions = NonNullable<SubsystemOptions['namespaces']>[number];

const BYTES = 4 << 20;
/** MDTS of the target. */
const COMMAND_BYTES = 1 << 20;

/** Lengths in bytes around every limit: a block, in-capsule data, one transfer of MDTS, and several. */
function lengths(block: number): number[] {
  const limits = [block, 4096, 8192, COMMAND_BYTES];
  const around = limits.flatMap((bytes) => [bytes - block, bytes, bytes + block]);
  return [...new Set([...around, 3 * COMMAND_BYTES + 7 * block])].filter((bytes) => bytes > 0);
}

/** The namespace beside a model of what it holds; every write goes to both. */
class Mirrored {
  readonly namespace: Namespace;
  readonly model = Buffer.alloc(BYTES);

  constructor(namespace: Namespace) {
    this.namespace = namespace;
  }

  get block(): number {
    return this.namespace.lbaSize;
  }

  part(lba: number, count: number): Buffer {
    return this.model.subarray(lba * this.block, (lba + count) * this.block);
  }

  async write(lba: number, data: Uint8Array, fua = false): Promise<void> {
    await this.namespace.write(lba, data, { fua });
    this.model.set(data, lba * this.block);
  }

  /** With a block before and behind it. */
  async check(lba: number, count: number): Promise<void> {
    const first = Math.max(lba - 1, 0);
    const blocks = Math.min(lba + count + 1, BYTES / this.block) - first;
    const data = await this.namespace.read(first, blocks);
    if (this.part(first, blocks).equals(data)) return;
    const wrong = data.findIndex((byte, i) => byte !== this.part(first, blocks)[i]);
    throw new Error(`LBA ${lba} + ${count}: byte ${wrong} from LBA ${first} is wrong`);
  }
}

async function everyLength(controller: Controller, disk: Mirrored): Promise<void> {
  let lba = 1;
  for (const bytes of lengths(disk.block)) {
    const count = bytes / disk.block;
    if (lba + count + 1 > BYTES / disk.block) lba = 1;
    await disk.write(lba, randomBytes(bytes), bytes === 4096);
    await disk.check(lba, count);
    const buffer = controller.allocateBuffer(bytes);
    buffer.bytes.set(randomBytes(bytes));
    await disk.write(lba, buffer.bytes);
    await disk.check(lba, count);
    buffer.bytes.fill(0xa5);
    const read = await disk.namespace.read(lba, count, { buffer: buffer.bytes });
    expect(disk.part(lba, count).equals(read), `${bytes} bytes into registered memory`).to.be.true;
    buffer.release();
    lba += count + 3;
  }
}

async function compareFinds(disk: Mirrored): Promise<void> {
  for (const bytes of [disk.block, 8192, 2 * COMMAND_BYTES + disk.block]) {
    const count = bytes / disk.block;
    await disk.write(9, randomBytes(bytes));
    const data = Buffer.from(disk.part(9, count));
    await disk.namespace.compare(9, data);
    for (const at of [0, bytes >> 1, bytes - 1]) {
      data.writeUInt8(data.readUInt8(at) ^ 1, at);
      const error = await failureOf(disk.namespace.compare(9, data));
      expect(error, `byte ${at} of ${bytes}`).to.be.instanceOf(NvmeStatusError);
      expect(error).to.include({ code: 'NVME_COMPARE_FAILURE', sct: 2, sc: 0x85 });
      data.writeUInt8(data.readUInt8(at) ^ 1, at);
    }
    await disk.namespace.compare(9, data);
  }
}

async function zeroesAndHoles(disk: Mirrored): Promise<void> {
  const blocks = BYTES / disk.block;
  await disk.write(0, randomBytes(BYTES));
  for (const [lba, count, deallocate] of [
    [3, 1, false],
    [40, 5, true],
    [100, (2 * COMMAND_BYTES) / disk.block + 1, false],
    [blocks - 2, 2, true],
  ] as const) {
    await disk.namespace.writeZeroes(lba, count, { deallocate, fua: !deallocate });
    disk.part(lba, count).fill(0);
    await disk.check(lba, count);
  }
  await disk.write(0, randomBytes(BYTES));
  const ranges = [
    { lba: 8, count: 8 },
    { lba: 64, count: 1 },
    { lba: BigInt(blocks - 8), count: 8n },
  ];
  await disk.namespace.deallocate(ranges);
  for (const range of ranges) {
    disk.part(Number(range.lba), Number(range.count)).fill(0);
    await disk.check(Number(range.lba), Number(range.count));
  }
  await disk.namespace.verify(0, blocks);
  await disk.namespace.flush();
  await disk.check(0, blocks);
}

/** Everything on a backing that keeps data; the file, where there is one, is looked at from outside. */
async function exercise(options: NamespaceOptions, path: string | undefined): Promise<void> {
  await withTarget({ namespaces: [options] }, async (scope) => {
    const controller = await scope.connect();
    const disk = new Mirrored(controller.namespace(1));
    expect(controller.transferBytesMax).to.equal(COMMAND_BYTES);
    expect(disk.block).to.equal(options.blockSize);
    expect(disk.namespace.bytes).to.equal(BigInt(BYTES));
    await everyLength(controller, disk);
    await compareFinds(disk);
    await zeroesAndHoles(disk);
    if (path !== undefined) expect(readFileSync(path).equals(disk.model)).to.be.true;
  });
}

describe('namespace commands', function () {
  this.timeout(30_000);
  keepLiveCounters();
  let folder: ReturnType<typeof temporaryFolder>;

  before(() => {
    folder = temporaryFolder();
  });
  after(() => {
    folder.remove();
  });

  for (const blockSize of [512, 4096] as const) {
    it(`memory, ${blockSize}-byte blocks`, () => exercise({ memory: BYTES, blockSize }, undefined));

    for (const cache of ['write-back', 'write-through', 'direct'] as const) {
      it(`file, ${cache}, ${blockSize}-byte blocks`, async () => {
        const path = join(folder.path, `${cache}-${blockSize}.img`);
        writeFileSync(path, '');
        truncateSync(path, BYTES);
        await exercise({ path, cache, blockSize }, path);
      });
    }

    it(`null, ${blockSize}-byte blocks: takes everything, reads as zeros`, async () => {
      await withTarget({ namespaces: [{ null: BYTES, blockSize }] }, async (scope) => {
        const controller = await scope.connect();
        const namespace = controller.namespace(1);
        for (const bytes of lengths(blockSize)) {
          await namespace.write(0, randomBytes(bytes));
          const buffer = randomBytes(bytes);
          await namespace.read(0, bytes / blockSize, { buffer });
          expect(buffer.some((byte) => byte !== 0)).to.be.false;
        }
        await namespace.compare(5, new Uint8Array(2 * blockSize));
        const error = await failureOf(namespace.compare(5, new Uint8Array(blockSize).fill(1)));
        expect(error).to.include({ code: 'NVME_COMPARE_FAILURE' });
        await namespace.writeZeroes(0, 100);
        await namespace.deallocate([{ lba: 0, count: 100 }]);
        await namespace.verify(0, BYTES / blockSize);
        await namespace.flush();
      });
    });
  }
});
