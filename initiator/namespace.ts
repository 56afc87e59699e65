/**
 * A namespace of a connected controller: reads and writes on blocks. Requests of any length are cut into commands.
 * Memory from `controller.allocateBuffer` is used in place; other memory is copied through such buffers, so that what
 * a target may touch is always registered memory of one command. Runs on the JavaScript thread.
 */
import { asError } from '../native/common/errors.ts';
import { IoOpcode } from '../native/wire/opcodes.ts';
import {
  DatasetManagementCommand,
  DatasetManagementRange,
  PSDT_SGL,
  Sqe,
} from '../native/wire/sqe.ts';
import { BlockCommands, type BlockFlags, type Lba } from './block-commands.ts';
import type { BufferPool } from './buffers.ts';
import { ArgumentError, DisconnectedError } from './errors.ts';
import type { NamespaceFacts, NamespaceIds } from './namespace-scan.ts';
import type { CommandData, CommandOptions, Queue, RunningCommand } from './queue.ts';
import { blocksPerCommand, checkRange, runAll, split, splitRanges } from './transfers.ts';
import type { BlockRange, DeallocateLimits } from './transfers.ts';

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

/** Commands that transfer blocks, of one kind. */
interface Transfers {
  readonly commands: BlockCommands;
  readonly direction: 'toController' | 'toHost';
}

const nothing = (): void => undefined;

/** What was thrown, as an async function would give it; those cost each read a promise of its own. */
function refused(error: unknown): Promise<never> {
  return Promise.reject(asError(error));
}

export class Namespace {
  readonly nsid: number;
  readonly #host: NamespaceHost;
  readonly #reads: Transfers;
  readonly #writes: Transfers;
  readonly #lastingWrites: Transfers;
  readonly #compares: Transfers;
  #facts: NamespaceFacts;
  #removed = false;

  /** Made by its controller. */
  constructor(host: NamespaceHost, facts: NamespaceFacts) {
    this.nsid = facts.nsid;
    this.#host = host;
    this.#facts = facts;
    this.#reads = { commands: this.#kind('Read', IoOpcode.read), direction: 'toHost' };
    const direction = 'toController';
    this.#writes = { commands: this.#kind('Write', IoOpcode.write), direction };
    this.#lastingWrites = {
      commands: this.#kind('Write', IoOpcode.write, { fua: true }),
      direction,
    };
    this.#compares = { commands: this.#kind('Compare', IoOpcode.compare), direction };
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
  read(lba: Lba, count: number, options: ReadOptions = {}): Promise<Uint8Array> {
    try {
      const first = checkRange(lba, count);
      const bytes = this.#bytesOf(count);
      const buffer = options.buffer ?? new Uint8Array(bytes);
      if (buffer.byteLength < bytes) {
        throw new ArgumentError(
          `${count} blocks need ${bytes} bytes, the buffer has ${buffer.byteLength}`,
        );
      }
      const into = buffer.byteLength === bytes ? buffer : buffer.subarray(0, bytes);
      return this.#transfer(this.#reads, first, count, into, options, () => into);
    } catch (error) {
      return refused(error);
    }
  }

  /** `data` is whole blocks. */
  write(lba: Lba, data: Uint8Array, options: WriteOptions = {}): Promise<void> {
    const kind = options.fua === true ? this.#lastingWrites : this.#writes;
    return this.#send(kind, lba, data, options);
  }

  /** Rejects with the status Compare Failure when a block differs. */
  compare(lba: Lba, data: Uint8Array, options: IoOptions = {}): Promise<void> {
    return this.#send(this.#compares, lba, data, options);
  }

  /** Everything written before it is on stable storage when it resolves. */
  async flush(options: IoOptions = {}): Promise<void> {
    const sqe = Sqe.encode({ opcode: IoOpcode.flush, psdt: PSDT_SGL, nsid: this.nsid });
    await this.#run('Flush', sqe, { kind: 'none' }, options, nothing).result;
  }

  async writeZeroes(lba: Lba, count: number, options: WriteZeroesOptions = {}): Promise<void> {
    const flags = { fua: options.fua ?? false, deac: options.deallocate ?? false };
    const commands = this.#kind('Write Zeroes', IoOpcode.writeZeroes, flags);
    await this.#onBlocks(commands, lba, count, this.#host.writeZeroesBytesMax, options);
  }

  /** The controller reads the blocks and reports what it cannot read; no data is transferred. */
  async verify(lba: Lba, count: number, options: IoOptions = {}): Promise<void> {
    const commands = this.#kind('Verify', IoOpcode.verify);
    await this.#onBlocks(commands, lba, count, this.#host.verifyBytesMax, options);
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
      return this.#run('Dataset Management', sqe, { kind: 'send', bytes }, options, nothing);
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

  #kind(name: string, opcode: number, flags: BlockFlags = {}): BlockCommands {
    return new BlockCommands(name, opcode, this.nsid, flags);
  }

  #run<T>(
    name: string,
    sqe: Uint8Array,
    data: CommandData,
    options: IoOptions,
    answer: () => T,
  ): RunningCommand<T> {
    if (this.#removed) {
      throw new DisconnectedError(`${name}: the controller has no namespace ${this.nsid} any more`);
    }
    const command: CommandOptions = {
      signal: options.signal,
      timeoutMs: options.timeoutMs ?? this.#host.commandTimeoutMs,
    };
    return this.#host.pickQueue().runFor(answer, { name, sqe, data }, command);
  }

  async #onBlocks(
    commands: BlockCommands,
    lba: Lba,
    count: number,
    bytesMax: number,
    options: IoOptions,
  ): Promise<void> {
    const first = checkRange(lba, count);
    const pieces = split(first, count, blocksPerCommand(bytesMax, this.lbaSize), this.lbaSize);
    await runAll(pieces, (piece) => {
      const sqe = commands.on(piece.lba, piece.blocks);
      return this.#run(commands.name, sqe, { kind: 'none' }, options, nothing);
    });
  }

  #send(kind: Transfers, lba: Lba, data: Uint8Array, options: IoOptions): Promise<void> {
    try {
      const count = this.#blocksOf(data);
      return this.#transfer(kind, checkRange(lba, count), count, data, options, nothing);
    } catch (error) {
      return refused(error);
    }
  }

  #transfer<T>(
    kind: Transfers,
    first: Lba,
    count: number,
    memory: Uint8Array,
    options: IoOptions,
    answer: () => T,
  ): Promise<T> {
    const { lbaSize } = this;
    const blocksMax = blocksPerCommand(this.#host.transferBytesMax, lbaSize);
    // Most requests are one command: without what several need.
    if (count <= blocksMax) return this.#one(kind, first, count, memory, options, answer).result;
    const pieces = split(first, count, blocksMax, lbaSize);
    return runAll(pieces, ({ lba, blocks, offset }) => {
      const part = memory.subarray(offset, offset + blocks * lbaSize);
      return this.#one(kind, lba, blocks, part, options, nothing);
    }).then(answer);
  }

  #one<T>(
    { commands, direction }: Transfers,
    lba: Lba,
    blocks: number,
    part: Uint8Array,
    options: IoOptions,
    answer: () => T,
  ): RunningCommand<T> {
    const { name } = commands;
    const sqe = commands.on(lba, blocks);
    const memory = this.#host.pool.find(part);
    if (!memory) return this.#copied(name, sqe, direction, part, options, answer);
    const { byteOffset: offset, byteLength: length } = part;
    const data = { kind: 'registered', direction, memory, offset, length } as const;
    return this.#run(name, sqe, data, options, answer);
  }

  /** Through a buffer of the pool, which is reused only when the command's key is dead. */
  #copied<T>(
    name: string,
    sqe: Uint8Array,
    direction: 'toController' | 'toHost',
    part: Uint8Array,
    options: IoOptions,
    answer: () => T,
  ): RunningCommand<T> {
    const { pool } = this.#host;
    const length = part.byteLength;
    const memory = pool.take(length);
    const bounce = new Uint8Array(memory.memory, 0, length);
    if (direction === 'toController') bounce.set(part);
    const data = { kind: 'registered', direction, memory, offset: 0, length } as const;
    let running: RunningCommand<T>;
    try {
      running = this.#run(name, sqe, data, options, () => {
        // The caller's own memory is never named by a command.
        if (direction === 'toHost') part.set(bounce);
        return answer();
      });
    } catch (error) {
      pool.give(memory);
      throw error;
    }
    const giveBack = (): void => {
      pool.give(memory);
    };
    running.result.then(giveBack, giveBack);
    return running;
  }
}
