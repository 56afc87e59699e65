/**
 * Cuts a request on blocks into commands that the controller takes, and runs them with a bounded number in flight.
 * Pure but for the commands themselves: who sends them is passed in.
 */
import { KEYED_LENGTH_MAX } from '../native/wire/sgl.ts';
import { DSM_RANGES_MAX } from '../native/wire/sqe.ts';
import type { Lba } from './block-commands.ts';
import { ArgumentError, CommandAbortedError, CommandTimeoutError } from './errors.ts';
import type { RunningCommand } from './queue.ts';

/** Largest block count of one command: NLB has 16 bits, 0-based. */
const COMMAND_BLOCKS_MAX = 65_536;
/** Commands of one request in flight. */
const WINDOW = 16;
const LBA_LIMIT = 1n << 64n;
const RANGE_BLOCKS_MAX = 0xffff_ffff;

export interface Piece {
  readonly lba: Lba;
  readonly blocks: number;
  /** Where its first byte lies in the caller's buffer. */
  readonly offset: number;
}

/** MDTS is 2^n pages of 4 KiB, 0 without limit; a keyed descriptor holds 24 bits of length. */
export function transferBytesMax(mdts: number): number {
  const limit = mdts === 0 ? Infinity : 4096 * 2 ** mdts;
  return Math.min(limit, KEYED_LENGTH_MAX);
}

export function blocksPerCommand(transferBytes: number, lbaSize: number): number {
  return Math.max(1, Math.min(Math.floor(transferBytes / lbaSize), COMMAND_BLOCKS_MAX));
}

function isWhole(value: Lba): boolean {
  return typeof value === 'bigint' || Number.isSafeInteger(value);
}

/** Refuses what no namespace can hold, so that a sum of LBAs never wraps. A number when all of the range are. */
export function checkRange(lba: Lba, count: Lba): Lba {
  if (typeof lba === 'number' && typeof count === 'number') {
    const whole = Number.isInteger(lba) && Number.isInteger(count);
    if (whole && lba >= 0 && count >= 1 && Number.isSafeInteger(lba + count)) return lba;
  }
  if (!isWhole(lba) || !isWhole(count))
    throw new ArgumentError(`LBA ${lba} and count ${count} must be whole numbers`);
  const first = BigInt(lba);
  const length = BigInt(count);
  if (length < 1n) throw new ArgumentError(`count must be at least 1, not ${count}`);
  if (first < 0n || length > LBA_LIMIT || first > LBA_LIMIT - length) {
    throw new ArgumentError(`blocks ${lba} + ${count} lie beyond every namespace`);
  }
  return first;
}

function plus(lba: Lba, blocks: number): Lba {
  return typeof lba === 'number' ? lba + blocks : lba + BigInt(blocks);
}

export function* split(
  lba: Lba,
  count: number,
  blocksMax: number,
  lbaSize: number,
): Generator<Piece> {
  for (let done = 0; done < count;) {
    const blocks = Math.min(blocksMax, count - done);
    yield { lba: plus(lba, done), blocks, offset: done * lbaSize };
    done += blocks;
  }
}

export interface BlockRange {
  readonly lba: Lba;
  readonly count: Lba;
}

export interface DeallocateLimits {
  /** DMRL, DMRSL, DMSL of Identify Controller for the NVM command set; 0: no limit. */
  readonly ranges: number;
  readonly rangeBlocks: number;
  readonly commandBlocks: bigint;
}

interface WireRange {
  readonly slba: bigint;
  readonly nlb: number;
}

/** Ranges grouped into commands; a range longer than 32 bits of blocks, or than the limits, becomes several. */
export function* splitRanges(
  ranges: readonly BlockRange[],
  limits: DeallocateLimits,
): Generator<WireRange[]> {
  const rangesMax = limits.ranges === 0 ? DSM_RANGES_MAX : Math.min(limits.ranges, DSM_RANGES_MAX);
  const total = limits.commandBlocks === 0n ? LBA_LIMIT : limits.commandBlocks;
  const own = limits.rangeBlocks === 0 ? RANGE_BLOCKS_MAX : limits.rangeBlocks;
  const rangeMax = total < BigInt(own) ? total : BigInt(own);
  let command: WireRange[] = [];
  let blocks = 0n;
  for (const range of ranges) {
    let slba = BigInt(checkRange(range.lba, range.count));
    let left = BigInt(range.count);
    while (left > 0n) {
      const length = left < rangeMax ? left : rangeMax;
      if (command.length === rangesMax || blocks + length > total) {
        yield command;
        command = [];
        blocks = 0n;
      }
      command.push({ slba, nlb: Number(length) });
      blocks += length;
      slba += length;
      left -= length;
    }
  }
  if (command.length > 0) yield command;
}

/**
 * Runs one command per item. Rejects with the first failure: at once when the caller gave up (abort, timeout; the
 * error's `released` then covers every command), else when no command of this request is on its way any more, so that
 * the caller's buffer is free.
 */
export async function runAll<T>(
  items: Iterable<T>,
  start: (item: T) => RunningCommand<unknown>,
): Promise<void> {
  const iterator = items[Symbol.iterator]();
  const unreleased = new Set<Promise<void>>();
  let stopped = false;
  const worker = async (first: T): Promise<void> => {
    let next: IteratorResult<T> = { value: first };
    while (!stopped && next.done !== true) {
      try {
        const { result, released } = start(next.value);
        unreleased.add(released);
        void released.then(() => unreleased.delete(released));
        await result;
      } catch (error) {
        stopped = true;
        throw error;
      }
      next = iterator.next();
    }
  };
  // No more workers than items: most requests are one command.
  const firsts: T[] = [];
  while (firsts.length < WINDOW) {
    const next = iterator.next();
    if (next.done === true) break;
    firsts.push(next.value);
  }
  const workers = firsts.map(worker);
  try {
    await Promise.all(workers);
  } catch (error) {
    const released = Promise.allSettled(workers)
      .then(() => Promise.all(unreleased))
      .then(() => undefined);
    if (error instanceof CommandAbortedError || error instanceof CommandTimeoutError) {
      throw error.withReleased(released);
    }
    await released;
    throw error;
  }
}
