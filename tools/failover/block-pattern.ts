/**
 * Data that says what it is: every logical block holds its number, the generation that wrote it and words that follow
 * from both and a seed, so that a wrong byte is seen and a stale or misplaced block is named. Pure.
 */

/** What one logical block should hold. */
export interface Stamp {
  readonly lba: number;
  readonly generation: number;
}

const HEADER_WORDS = 4;

/** Writes blocks of `lbaSize` bytes, the first of which is `lba`. `data` is whole blocks, aligned to 4 bytes. */
export function fillBlocks(
  data: Uint8Array,
  lbaSize: number,
  seed: number,
  lba: number,
  generation: number,
): void {
  const words = new Uint32Array(data.buffer, data.byteOffset, data.byteLength / 4);
  const perBlock = lbaSize / 4;
  for (let block = 0; block * perBlock < words.length; block++) {
    fillBlock(
      words.subarray(block * perBlock, (block + 1) * perBlock),
      seed,
      lba + block,
      generation,
    );
  }
}

function fillBlock(words: Uint32Array, seed: number, lba: number, generation: number): void {
  words[0] = seed;
  words[1] = lba >>> 0;
  words[2] = Math.floor(lba / 2 ** 32);
  words[3] = generation;
  let state = mix(seed ^ mix(lba >>> 0) ^ Math.imul(generation, 0x9e3779b1)) | 1;
  for (let at = HEADER_WORDS; at < words.length; at++) {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    words[at] = state;
  }
}

function mix(value: number): number {
  let z = Math.imul(value ^ (value >>> 16), 0x85ebca6b);
  z = Math.imul(z ^ (z >>> 13), 0xc2b2ae35);
  return (z ^ (z >>> 16)) >>> 0;
}

/** Compares without memory of its own but for one block; belongs to one checker at a time. */
export class BlockChecker {
  readonly #seed: number;
  readonly #expected: Uint8Array;

  constructor(lbaSize: number, seed: number) {
    this.#seed = seed;
    this.#expected = new Uint8Array(lbaSize);
  }

  /** Whether a block holds what that generation wrote. */
  holds(block: Uint8Array, lba: number, generation: number): boolean {
    fillBlocks(this.#expected, this.#expected.byteLength, this.#seed, lba, generation);
    return Buffer.compare(block, this.#expected) === 0;
  }

  /** What a block that is none of the expected ones is, for a person. */
  describe(block: Uint8Array): string {
    const view = new DataView(block.buffer, block.byteOffset, block.byteLength);
    if (view.getUint32(0, true) !== this.#seed) {
      return block.every((byte) => byte === 0) ? 'zeroes' : 'bytes that this run never wrote';
    }
    const lba = view.getUint32(4, true) + view.getUint32(8, true) * 2 ** 32;
    const generation = view.getUint32(12, true);
    const whole = this.holds(block, lba, generation);
    return `generation ${generation} of LBA ${lba}${whole ? '' : ', damaged'}`;
  }
}
