/**
 * A namespace of a connected controller: reads and writes on blocks. Requests of any length are cut into commands.
 * Memory from `controller.allocateBuffer` is used in place; other memory is copied through such buffers, so that what
 * a target may touch is always registered memory of one command. Runs on the JavaScript thread.
 */
import { viewOf } from '../native/wire/layout.ts';
import { IoOpcode } from '../native/wire/opcodes.ts';
import {
  BlockCommand,
  DatasetManagementCommand,
  DatasetManagementRange,
  PSDT_SGL,
  Sqe,
} from '../native/wire/sqe.ts';
import type { BufferPool } from './buffers.ts';
import { ArgumentError, DisconnectedError } from './errors.ts';
import type { NamespaceFacts, NamespaceIds } from './namespace-scan.ts';
import type { CommandData, CommandOptions, Queue, RunningCommand } from './queue.ts';
import { blocksPerCommand, checkRange, runAll, split, splitRanges } from './transfers.ts';
import type { BlockRange, DeallocateLimits, Piece } from './transfers.ts';

export interface IoOptions {
  /** Rejects at once; the error's `released` says when the buffer is free again. */
  readonly signal?: AbortSignal;
  /** For each command; 0: none. Default: the controller's. */
  readonly timeoutMs?: number;
}

export interface ReadOptions extends IoOptions {
  /** Where to read to; at least count blocks long. Default: new memory. */
  readonly buffer?: Uint8Array;
}

export interface WriteOptions extends IoOptions {
  /** Force Unit Access: answered when it is on stable storage. */
  readonly fua?: boolean;
}

export interface WriteZeroesOptions extends WriteOptions {
  /** The blocks may be deallocated. */
  readonly deallocate?: boolean;
}

/** What a namespace needs of its controller. */
export interface NamespaceHost {
  readonly pool: BufferPool;
  readonly transferBytesMax: number;
  /** Largest Write Zeroes and Verify, bytes. */
  readonly writeZeroesBytesMax: number;
  readonly verifyBytesMax: number;
  readonly deallocateLimits: DeallocateLimits;
  readonly commandTimeoutMs: number;
  pickQueue(): Queue;
}

/** Where a block command is written before it is copied into a capsule: one at a time. */
const blockSqe = new Uint8Array(BlockCommand.size);
const blockView = viewOf(blockSqe);

type BlockFlags = Partial<Pick<BlockCommand, 'fua' | 'deac'>>;

export class Namespace {
  readonly nsid: number;
  readonly #host: NamespaceHost;
  #facts: NamespaceFacts;
  #removed = false;

  /** Made by its controller. */
  constructor(host: NamespaceHost, facts: NamespaceFacts) {
    this.nsid = facts.nsid;
    this.#host = host;
    this.#facts = facts;
  }

  /** Bytes of a block. */
  get lbaSize(): number {
    return this.#facts.lbaSize;
  }

  get lbaCount(): bigint {
    return this.#facts.lbaCount;
  }

  get bytes(): bigint {
    return this.#facts.lbaCount * BigInt(this.#facts.lbaSize);
  }

  get writeProtected(): boolean {
    return this.#facts.writeProtected;
  }

  get ids(): NamespaceIds {
    return this.#facts.ids;
  }

  /** Identify Namespace, and what was read besides. */
  get facts(): NamespaceFacts {
    return this.#facts;
  }

  /** The controller does not have it any more. */
  get removed(): boolean {
    return this.#removed;
  }

  /** Resolves with the data: `buffer`, cut to length, when one was given. */
  async read(lba: number | bigint, count: number, options: ReadOptions = {}): Promise<Uint8Array> {
    const first = checkRange(lba, count);
    const bytes = this.#bytesOf(count);
    const buffer = options.buffer ?? new Uint8Array(bytes);
    if (buffer.byteLength < bytes) {
      throw new ArgumentError(
        `${count} blocks need ${bytes} bytes, the buffer has ${buffer.byteLength}`,
      );
    }
    const into = buffer.byteLength === bytes ? buffer : buffer.subarray(0, bytes);
    await this.#transfer('Read', IoOpcode.read, 'toHost', first, count, into, {}, options);
    return into;
  }

  /** `data` is whole blocks. */
  async write(lba: number | bigint, data: Uint8Array, options: WriteOptions = {}): Promise<void> {
    const count = this.#blocksOf(data);
    const first = checkRange(lba, count);
    const flags = { fua: options.fua ?? false };
    await this.#transfer(
      'Write',
      IoOpcode.write,
      'toController',
      first,
      count,
      data,
      flags,
      options,
    );
  }

  /** Rejects with the status Compare Failure when a block differs. */
  async compare(lba: number | bigint, data: Uint8Array, options: IoOptions = {}): Promise<void> {
    const count = this.#blocksOf(data);
    const first = checkRange(lba, count);
    await this.#transfer(
      'Compare',
      IoOpcode.compare,
      'toController',
      first,
      count,
      data,
      {},
      options,
    );
  }

  /** Everything written before it is on stable storage when it resolves. */
  async flush(options: IoOptions = {}): Promise<void> {
    const sqe = Sqe.encode({ opcode: IoOpcode.flush, psdt: PSDT_SGL, nsid: this.nsid });
    await this.#run('Flush', sqe, { kind: 'none' }, options).result;
  }

  async writeZeroes(
    lba: number | bigint,
    count: number,
    options: WriteZeroesOptions = {},
  ): Promise<void> {
    const flags = { fua: options.fua ?? false, deac: options.deallocate ?? false };
    const limit = this.#host.writeZeroesBytesMax;
    await this.#onBlocks('Write Zeroes', IoOpcode.writeZeroes, lba, count, limit, flags, options);
  }

  /** The controller reads the blocks and reports what it cannot read; no data is transferred. */
  async verify(lba: number | bigint, count: number, options: IoOptions = {}): Promise<void> {
    const limit = this.#host.verifyBytesMax;
    await this.#onBlocks('Verify', IoOpcode.verify, lba, count, limit, {}, options);
  }

  /** The blocks are no longer needed; a file on the target gets holes. */
  async deallocate(ranges: readonly BlockRange[], options: IoOptions = {}): Promise<void> {
    if (ranges.length === 0) throw new ArgumentError('no range to deallocate');
    const commands = [...splitRanges(ranges, this.#host.deallocateLimits)];
    await runAll(commands, (command) => {
      const sqe = DatasetManagementCommand.encode({
        opcode: IoOpcode.datasetManagement,
        psdt: PSDT_SGL,
        nsid: this.nsid,
        nr: command.length - 1,
        ad: true,
      });
      const bytes = new Uint8Array(command.length * DatasetManagementRange.size);
      command.forEach((range, index) => {
        DatasetManagementRange.write(bytes, index * DatasetManagementRange.size, range);
      });
      return this.#run('Dataset Management', sqe, { kind: 'send', bytes }, options);
    });
  }

  /** For the controller: a rescan found it changed, or gone. */
  update(facts: NamespaceFacts | undefined): void {
    if (facts) this.#facts = facts;
    else this.#removed = true;
  }

  #bytesOf(count: number): number {
    const bytes = count * this.lbaSize;
    if (!Number.isSafeInteger(bytes)) throw new ArgumentError(`${count} blocks do not fit memory`);
    return bytes;
  }

  #blocksOf(data: Uint8Array): number {
    if (data.byteLength === 0 || data.byteLength % this.lbaSize !== 0) {
      throw new ArgumentError(
        `${data.byteLength} bytes are not whole blocks of ${this.lbaSize} bytes`,
      );
    }
    return data.byteLength / this.lbaSize;
  }

  #run(name: string, sqe: Uint8Array, data: CommandData, options: IoOptions): RunningCommand {
    if (this.#removed) {
      throw new DisconnectedError(`${name}: the controller has no namespace ${this.nsid} any more`);
    }
    const command: CommandOptions = {
      signal: options.signal,
      timeoutMs: options.timeoutMs ?? this.#host.commandTimeoutMs,
    };
    return this.#host.pickQueue().run({ name, sqe, data }, command);
  }

  /** Valid until the next call. */
  #blockSqe(opcode: number, piece: Piece, flags: BlockFlags): Uint8Array {
    BlockCommand.fill(blockView, 0, {
      opcode,
      psdt: PSDT_SGL,
      nsid: this.nsid,
      slba: piece.lba,
      nlb: piece.blocks - 1,
      ...flags,
    });
    return blockSqe;
  }

  async #onBlocks(
    name: string,
    opcode: number,
    lba: number | bigint,
    count: number,
    bytesMax: number,
    flags: BlockFlags,
    options: IoOptions,
  ): Promise<void> {
    const first = checkRange(lba, count);
    const pieces = split(first, count, blocksPerCommand(bytesMax, this.lbaSize), this.lbaSize);
    await runAll(pieces, (piece) =>
      this.#run(name, this.#blockSqe(opcode, piece, flags), { kind: 'none' }, options),
    );
  }

  async #transfer(
    name: string,
    opcode: number,
    direction: 'toController' | 'toHost',
    first: bigint,
    count: number,
    memory: Uint8Array,
    flags: BlockFlags,
    options: IoOptions,
  ): Promise<void> {
    const { lbaSize } = this;
    const blocksMax = blocksPerCommand(this.#host.transferBytesMax, lbaSize);
    const start = (piece: Piece): RunningCommand => {
      const length = piece.blocks * lbaSize;
      const part =
        length === memory.byteLength
          ? memory
          : memory.subarray(piece.offset, piece.offset + length);
      const sqe = this.#blockSqe(opcode, piece, flags);
      const registered = this.#host.pool.find(part);
      if (!registered) return this.#copied(name, sqe, direction, part, options);
      const data = {
        kind: 'registered',
        direction,
        memory: registered,
        offset: part.byteOffset,
        length: part.byteLength,
      } as const;
      return this.#run(name, sqe, data, options);
    };
    // Most requests are one command: without what several need.
    if (count <= blocksMax) await start({ lba: first, blocks: count, offset: 0 }).result;
    else await runAll(split(first, count, blocksMax, lbaSize), start);
  }

  /** Through a buffer of the pool, which is reused only when the command's key is dead. */
  #copied(
    name: string,
    sqe: Uint8Array,
    direction: 'toController' | 'toHost',
    part: Uint8Array,
    options: IoOptions,
  ): RunningCommand {
    const { pool } = this.#host;
    const length = part.byteLength;
    const memory = pool.take(length);
    const bounce = new Uint8Array(memory.memory, 0, length);
    if (direction === 'toController') bounce.set(part);
    const data = { kind: 'registered', direction, memory, offset: 0, length } as const;
    let running: RunningCommand;
    try {
      running = this.#run(name, sqe, data, options);
    } catch (error) {
      pool.give(memory);
      throw error;
    }
    const result = running.result.then(
      (done) => {
        if (direction === 'toHost') part.set(bounce);
        pool.give(memory);
        return done;
      },
      (error: unknown) => {
        pool.give(memory);
        throw error;
      },
    );
    // The caller's own memory is never named by a command.
    return { result, released: running.released };
  }
}
