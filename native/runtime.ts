/**
 * What TypeScript sees of the native side while it runs: the door's calls, and its events brought to whoever waits for
 * them. One Runtime per process, shared by a target and an initiator that live together. Runs on the JavaScript thread.
 */
import { decodeEvents, RECORD_BYTES_MAX } from './events.ts';
import type { Door, DoorEvent, ListenerId, OperationId, QueueId, RuntimeOptions } from './index.ts';

export type QueueEvent = Extract<DoorEvent, { readonly queue: QueueId }>;
export type ConnectRequestEvent = Extract<DoorEvent, { readonly kind: 'connectRequest' }>;

/** A change that native refused or could not finish. */
export class OperationError extends Error {
  override readonly name = 'OperationError';
  readonly errno: number;
  constructor(errno: number, message: string) {
    super(message);
    this.errno = errno;
  }
}

/** At least one record of the largest kind: native refuses a smaller buffer. */
const DRAIN_BYTES = RECORD_BYTES_MAX;

export class Runtime {
  readonly door: Door;
  readonly #queues = new Map<QueueId, (event: QueueEvent) => void>();
  readonly #listeners = new Map<ListenerId, (event: ConnectRequestEvent) => void>();
  readonly #operations = new Map<
    OperationId,
    { resolve: (value: number) => void; reject: (error: Error) => void }
  >();
  readonly #buffer = new Uint8Array(DRAIN_BYTES);
  #stopped = false;
  #flushSoon = false;
  /** Reactors must not outlive JavaScript: their threads would run while the process takes itself apart. */
  readonly #stopAtExit = (): void => {
    this.door.stop();
  };

  /** Tests pass a fake door and call `dispatch` themselves. */
  constructor(door: Door) {
    this.door = door;
  }

  static start(door: Door, options: Omit<RuntimeOptions, 'onWake'>): Runtime {
    const runtime = new Runtime(door);
    door.start({
      ...options,
      onWake: () => {
        runtime.drain();
      },
    });
    process.once('exit', runtime.#stopAtExit);
    return runtime;
  }

  /** Closes everything that is still open; its last events are dispatched before this returns. */
  stop(): void {
    process.removeListener('exit', this.#stopAtExit);
    this.door.stop();
    this.#stopped = true;
    this.drain();
  }

  /** Events of a queue until (and with) its `queueClosed` or `connectFailed`. */
  handleQueue(queue: QueueId, handler: (event: QueueEvent) => void): void {
    this.#queues.set(queue, handler);
  }

  handleListener(
    listener: ListenerId,
    handler: ((event: ConnectRequestEvent) => void) | undefined,
  ): void {
    if (handler) this.#listeners.set(listener, handler);
    else this.#listeners.delete(listener);
  }

  /** To be called after a submission: the turn's submissions leave together, when what runs now has ended. */
  submitted(): void {
    if (this.#flushSoon) return;
    this.#flushSoon = true;
    queueMicrotask(this.#flush);
  }

  readonly #flush = (): void => {
    this.#flushSoon = false;
    this.door.flush();
  };

  /** Resolves with the operation's value when the change holds for all I/O. */
  operation(id: OperationId): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#operations.set(id, { resolve, reject });
    });
  }

  drain(): void {
    for (;;) {
      const bytes = this.door.drain(this.#buffer);
      if (bytes === 0) return;
      for (const event of decodeEvents(this.#buffer, bytes)) {
        try {
          this.dispatch(event);
        } catch (error) {
          // A handler's mistake must not cost the other events of the batch: it surfaces as an uncaught exception.
          queueMicrotask(() => {
            throw error;
          });
        }
      }
    }
  }

  dispatch(event: DoorEvent): void {
    if (event.kind === 'connectRequest') {
      const handler = this.#listeners.get(event.listener);
      if (handler) handler(event);
      else if (!this.#stopped) this.door.reject(event.connection, 8, new Uint8Array());
    } else if (event.kind === 'operationDone') {
      const waiting = this.#operations.get(event.operation);
      this.#operations.delete(event.operation);
      if (event.error === 0) waiting?.resolve(event.value);
      else waiting?.reject(new OperationError(event.error, event.message));
    } else {
      const handler = this.#queues.get(event.queue);
      if (event.kind === 'queueClosed' || event.kind === 'connectFailed') {
        this.#queues.delete(event.queue);
      }
      handler?.(event);
    }
  }
}
