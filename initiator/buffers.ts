/**
 * Registered memory of one controller: what commands read from and write to without a copy. Buffers are handed out by
 * size class (powers of two) and kept for reuse; one that is still named by a command comes back only when that
 * command's key is dead. Runs on the JavaScript thread.
 */
import type { BufferId, DeviceId, Door } from '../native/index.ts';
import { ArgumentError, DisconnectedError } from './errors.ts';

const SMALLEST_BYTES = 4096;
const LARGEST_BYTES = 1 << 30;
/** Free memory kept for reuse. */
const KEPT_BYTES_MAX = 64 * 1024 * 1024;

/** One registration; `uses` counts the commands that name it. */
export class RegisteredMemory {
  readonly id: BufferId;
  readonly memory: ArrayBuffer;
  #uses = 0;
  #waiting: (() => void)[] = [];

  constructor(id: BufferId, memory: ArrayBuffer) {
    this.id = id;
    this.memory = memory;
  }

  get busy(): boolean {
    return this.#uses > 0;
  }

  beginUse(): void {
    this.#uses += 1;
  }

  endUse(): void {
    this.#uses -= 1;
    if (this.#uses > 0) return;
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }

  /** Resolves when no command names it. */
  idle(): Promise<void> {
    if (this.#uses === 0) return Promise.resolve();
    return new Promise((resolve) => {
      this.#waiting.push(resolve);
    });
  }
}

/** A buffer of the pool. Commands on `bytes`, or on any part of it, are zero-copy. */
export interface RegisteredBuffer {
  readonly bytes: Uint8Array;
  /** Resolves when no command names it any more (after an abort or a timeout, when the key is dead). */
  idle(): Promise<void>;
  /** Gives it back; it is reused when it is idle. `bytes` must not be touched afterwards. */
  release(): void;
}

export class BufferPool {
  readonly #door: Door;
  readonly #device: DeviceId;
  readonly #free = new Map<number, RegisteredMemory[]>();
  readonly #byMemory = new Map<ArrayBufferLike, RegisteredMemory>();
  #keptBytes = 0;
  #closed = false;

  constructor(door: Door, device: DeviceId) {
    this.#door = door;
    this.#device = device;
  }

  /** Registrations that exist now. */
  get size(): number {
    return this.#byMemory.size;
  }

  allocate(bytes: number): RegisteredBuffer {
    const memory = this.take(bytes);
    let released = false;
    return {
      bytes: new Uint8Array(memory.memory, 0, bytes),
      idle: () => memory.idle(),
      release: () => {
        if (released) return;
        released = true;
        this.give(memory);
      },
    };
  }

  take(bytes: number): RegisteredMemory {
    if (this.#closed) throw new DisconnectedError('the controller is disconnected');
    if (!Number.isSafeInteger(bytes) || bytes < 1 || bytes > LARGEST_BYTES) {
      throw new ArgumentError(`a buffer has 1 to ${LARGEST_BYTES} bytes, not ${bytes}`);
    }
    let size = SMALLEST_BYTES;
    while (size < bytes) size *= 2;
    const kept = this.#free.get(size)?.pop();
    if (kept) {
      this.#keptBytes -= size;
      return kept;
    }
    const { id, memory } = this.#door.allocateBuffer(this.#device, size);
    const registered = new RegisteredMemory(id, memory);
    this.#byMemory.set(memory, registered);
    return registered;
  }

  /** Back to the free list, or to native, once it is idle. */
  give(registered: RegisteredMemory): void {
    if (!registered.busy) {
      this.#keep(registered);
      return;
    }
    void registered.idle().then(() => {
      this.#keep(registered);
    });
  }

  /** The registration that `bytes` lies in, if it lies in one. */
  find(bytes: Uint8Array): RegisteredMemory | undefined {
    return this.#byMemory.get(bytes.buffer);
  }

  /** Everything back to native. All queues are closed, so nothing is in flight. */
  close(): void {
    this.#closed = true;
    for (const registered of this.#byMemory.values()) this.#door.freeBuffer(registered.id);
    this.#byMemory.clear();
    this.#free.clear();
    this.#keptBytes = 0;
  }

  #keep(registered: RegisteredMemory): void {
    if (this.#closed) return;
    const size = registered.memory.byteLength;
    if (size > KEPT_BYTES_MAX - this.#keptBytes) {
      this.#byMemory.delete(registered.memory);
      this.#door.freeBuffer(registered.id);
      return;
    }
    this.#keptBytes += size;
    const list = this.#free.get(size);
    if (list) list.push(registered);
    else this.#free.set(size, [registered]);
  }
}
