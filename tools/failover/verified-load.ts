/**
 * Reads and writes at a fixed rate, or as fast as answers come, on places drawn at random; every read is compared with
 * what may be there. At a fixed rate each request is due at its own time, and its latency counts from then on, also when
 * a stall kept it from being sent: what a user would have waited is what is measured.
 */
import { messageOf } from '../../native/common/errors.ts';
import type { Clock, Timer } from '../../native/common/clock.ts';
import { BlockChecker, fillBlocks } from './block-pattern.ts';
import { CompletionLog } from './completion-log.ts';
import type { Operation } from './completion-log.ts';
import type { IoTarget } from './host.ts';
import { WriteLedger } from './write-ledger.ts';

export interface LoadOptions {
  /** Requests a second; absent: as fast as answers come. */
  readonly rate?: number;
  readonly readPercent: number;
  /** Bytes of a request, a multiple of the block size. */
  readonly requestBytes: number;
  /** Of the namespace, from its beginning. */
  readonly areaBytes: number;
  /** Requests in flight, at most. */
  readonly depth: number;
  readonly seed: number;
}

export interface LoadError {
  readonly atMs: number;
  readonly operation: Operation;
  readonly lba: number;
  readonly code: string;
  readonly message: string;
}

/** A block that holds what it must not. */
export interface Mismatch {
  readonly atMs: number;
  readonly lba: number;
  readonly expected: string;
  readonly found: string;
}

const ERRORS_KEPT = 100;
const PUMP_MS = 1;
/** Draws of a place that is free. */
const DRAWS = 16;

export class VerifiedLoad {
  readonly log = new CompletionLog();
  readonly errors: LoadError[] = [];
  readonly mismatches: Mismatch[] = [];
  errorCount = 0;
  mismatchCount = 0;
  blocksVerified = 0;
  readonly #io: IoTarget;
  readonly #clock: Clock;
  readonly #options: LoadOptions;
  readonly #ledger: WriteLedger;
  readonly #checker: BlockChecker;
  readonly #buffers: Uint8Array[] = [];
  #random: number;
  #startedAt = 0;
  #issued = 0;
  #inFlight = 0;
  #running = false;
  #timer: Timer | undefined;
  #idle: (() => void) | undefined;

  constructor(io: IoTarget, clock: Clock, options: LoadOptions) {
    this.#io = io;
    this.#clock = clock;
    this.#options = options;
    this.#random = options.seed >>> 0 || 1;
    this.#ledger = new WriteLedger(Math.floor(options.areaBytes / options.requestBytes));
    this.#checker = new BlockChecker(io.lbaSize, options.seed >>> 0);
  }

  /** Requests in flight. */
  get unfinished(): number {
    return this.#inFlight;
  }

  get inDoubt(): number {
    return this.#ledger.inDoubt;
  }

  get elapsedMs(): number {
    return this.#clock.now() - this.#startedAt;
  }

  /** Writes every place once, so that every read has something to be compared with. Rejects when that fails. */
  async prepare(): Promise<void> {
    await this.#everyPlace(async (place, buffer) => {
      await this.#write(place, buffer);
    });
  }

  /** Reads every place and compares; resolves with the number of blocks that are wrong. */
  async verifyAll(): Promise<number> {
    const before = this.mismatchCount;
    await this.#everyPlace((place, buffer) => this.#read(place, buffer));
    return this.mismatchCount - before;
  }

  start(): void {
    this.#startedAt = this.#clock.now();
    this.#running = true;
    this.#pump();
  }

  /** No new requests; resolves when those in flight have ended. */
  async stop(): Promise<void> {
    this.#running = false;
    this.#timer?.cancel();
    if (this.#inFlight === 0) return;
    await new Promise<void>((resolve) => {
      this.#idle = resolve;
    });
  }

  /** What is due and has room goes out. */
  #pump(): void {
    if (!this.#running) return;
    const { rate, depth } = this.#options;
    const due = rate === undefined ? Number.MAX_SAFE_INTEGER : (this.elapsedMs * rate) / 1000;
    while (this.#inFlight < depth && this.#issued < due && !this.log.full) {
      const dueMs = rate === undefined ? this.elapsedMs : (this.#issued * 1000) / rate;
      this.#issued++;
      this.#issue(dueMs);
    }
    if (rate === undefined) return;
    this.#timer ??= this.#clock.after(PUMP_MS, () => {
      this.#timer = undefined;
      this.#pump();
    });
  }

  #issue(dueMs: number): void {
    const place = this.#freePlace();
    const reads = this.#draw(100) < this.#options.readPercent;
    const buffer = this.#buffers.pop() ?? new Uint8Array(this.#options.requestBytes);
    this.#inFlight++;
    void this.#run(reads ? 'read' : 'write', place, buffer, dueMs);
  }

  async #run(
    operation: Operation,
    place: number,
    buffer: Uint8Array,
    dueMs: number,
  ): Promise<void> {
    let failure: unknown;
    let reusable = true;
    try {
      if (operation === 'read') await this.#read(place, buffer);
      else await this.#write(place, buffer);
    } catch (error) {
      failure = error ?? new Error('rejected without a reason');
      // A command that was given up may reach it still.
      reusable = false;
    }
    const now = this.elapsedMs;
    this.log.add(now, now - dueMs, operation, failure !== undefined);
    if (failure !== undefined) this.#failed(operation, place, now, failure);
    this.#ledger.unlock(place);
    if (reusable) this.#buffers.push(buffer);
    this.#inFlight--;
    if (this.#inFlight === 0) this.#idle?.();
    if (failure === undefined) this.#pump();
    else if (this.#running) this.#pumpLater();
  }

  /** Requests that fail at once must not keep the process from everything else. */
  #pumpLater(): void {
    this.#timer ??= this.#clock.after(PUMP_MS, () => {
      this.#timer = undefined;
      this.#pump();
    });
  }

  #failed(operation: Operation, place: number, atMs: number, failure: unknown): void {
    this.errorCount++;
    if (this.errors.length >= ERRORS_KEPT) return;
    const { code } = failure as { readonly code?: unknown };
    this.errors.push({
      ...{ atMs, operation, lba: this.#lbaOf(place), message: messageOf(failure) },
      code: typeof code === 'string' ? code : 'UNKNOWN',
    });
  }

  async #write(place: number, buffer: Uint8Array): Promise<void> {
    const generation = this.#ledger.nextGeneration();
    const lba = this.#lbaOf(place);
    fillBlocks(buffer, this.#io.lbaSize, this.#options.seed >>> 0, lba, generation);
    try {
      await this.#io.write(lba, buffer);
    } catch (error) {
      this.#ledger.failed(place, generation);
      throw error;
    }
    this.#ledger.acknowledged(place, generation);
  }

  async #read(place: number, buffer: Uint8Array): Promise<void> {
    const { lbaSize } = this.#io;
    const first = this.#lbaOf(place);
    const blocks = this.#options.requestBytes / lbaSize;
    const data = await this.#io.read(first, blocks, { buffer });
    const allowed = this.#ledger.allowed(place);
    for (let index = 0; index < blocks; index++) {
      const block = data.subarray(index * lbaSize, (index + 1) * lbaSize);
      this.blocksVerified++;
      if (allowed.some((generation) => this.#checker.holds(block, first + index, generation))) {
        continue;
      }
      this.mismatchCount++;
      if (this.mismatches.length >= ERRORS_KEPT) continue;
      this.mismatches.push({
        ...{ atMs: this.elapsedMs, lba: first + index, found: this.#checker.describe(block) },
        expected: `generation ${allowed.join(' or ')}`,
      });
    }
  }

  async #everyPlace(work: (place: number, buffer: Uint8Array) => Promise<void>): Promise<void> {
    let next = 0;
    const worker = async (): Promise<void> => {
      const buffer = new Uint8Array(this.#options.requestBytes);
      while (next < this.#ledger.places) await work(next++, buffer);
    };
    await Promise.all(Array.from({ length: Math.min(this.#options.depth, 32) }, worker));
  }

  #lbaOf(place: number): number {
    return place * (this.#options.requestBytes / this.#io.lbaSize);
  }

  /** One that is drawn, or the next free one: there are more places than requests in flight. */
  #freePlace(): number {
    for (let attempt = 0; attempt < DRAWS; attempt++) {
      const place = this.#draw(this.#ledger.places);
      if (this.#ledger.lock(place)) return place;
    }
    let place = this.#draw(this.#ledger.places);
    while (!this.#ledger.lock(place)) place = (place + 1) % this.#ledger.places;
    return place;
  }

  #draw(limit: number): number {
    let z = (this.#random = (this.#random + 0x6d2b79f5) >>> 0);
    z = Math.imul(z ^ (z >>> 15), z | 1);
    z ^= z + Math.imul(z ^ (z >>> 7), z | 61);
    return ((z ^ (z >>> 14)) >>> 0) % limit;
  }
}

/** Throws when options make no sense with the namespace. */
export function checkLoad(io: IoTarget, options: LoadOptions): void {
  const { requestBytes, areaBytes, depth } = options;
  if (requestBytes === 0 || requestBytes % io.lbaSize !== 0) {
    throw new RangeError(
      `requests of ${requestBytes} bytes are not whole blocks of ${io.lbaSize} bytes`,
    );
  }
  if (BigInt(areaBytes) > io.lbaCount * BigInt(io.lbaSize)) {
    throw new RangeError(`an area of ${areaBytes} bytes is more than the namespace has`);
  }
  if (areaBytes < requestBytes * depth * 2) {
    throw new RangeError(
      `an area of ${areaBytes} bytes is too small for ${depth} requests of ${requestBytes} bytes in flight`,
    );
  }
}
