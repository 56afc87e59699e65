/**
 * One connected queue of a controller: commands go in, completions come out, each exactly once. Knows the door's
 * events and nothing of what the commands mean. A command that is aborted or runs out of time rejects at once; its
 * memory is free when native has said the last word (`released`). Runs on the JavaScript thread.
 */
import { NvmeStatusError } from '../native/common/errors.ts';
import type { Clock } from '../native/common/clock.ts';
import type {
  ConnectOptions,
  DeviceId,
  Door,
  PathQueueOptions,
  QueueId,
  ReactorIndex,
  Tag,
} from '../native/index.ts';
import type { QueueEvent, Runtime } from '../native/runtime.ts';
import type { RegisteredMemory } from './buffers.ts';
import { Deadlines, type Deadline } from './deadlines.ts';
import { CommandAbortedError, CommandTimeoutError, DisconnectedError } from './errors.ts';

/** What a command carries: nothing, bytes to send, room to receive, or a part of registered memory. */
export type CommandData =
  | { readonly kind: 'none' }
  | { readonly kind: 'send'; readonly bytes: Uint8Array }
  | { readonly kind: 'receive'; readonly length: number }
  | {
      readonly kind: 'registered';
      readonly direction: 'toController' | 'toHost';
      readonly memory: RegisteredMemory;
      readonly offset: number;
      readonly length: number;
    };

export interface CommandRequest {
  /** In the specification's words, for errors: "Read", "Identify Controller". */
  readonly name: string;
  /** Copied before `run` returns. */
  readonly sqe: Uint8Array;
  readonly data: CommandData;
}

export interface CommandOptions {
  readonly signal?: AbortSignal | undefined;
  /** 0: wait for ever. */
  readonly timeoutMs: number;
}

export interface CommandResult {
  /** Dwords 0 and 1. */
  readonly result: bigint;
  /** What a 'receive' command got. */
  readonly data: Uint8Array;
}

export interface RunningCommand<T = CommandResult> {
  readonly result: Promise<T>;
  /** Resolves, never rejects, when nothing can touch the command's memory any more. */
  readonly released: Promise<void>;
}

/** What the caller is told of a success. */
type Answer<T> = (result: bigint, data: Uint8Array) => T;

const allOfIt: Answer<CommandResult> = (result, data) => ({ result, data });

/** A command on its way. */
class Pending<T = unknown> implements RunningCommand<T> {
  readonly tag: Tag;
  readonly name: string;
  readonly memory: RegisteredMemory | undefined;
  readonly result: Promise<T>;
  resolve!: (answer: T) => void;
  reject!: (error: Error) => void;
  settled = false;
  deadline: Deadline<Pending> | undefined;
  signal: AbortSignal | undefined;
  onAbort: (() => void) | undefined;
  readonly #answer: Answer<T>;
  #released: Promise<void> | undefined;
  #release: (() => void) | undefined;
  #over = false;

  constructor(tag: Tag, { name, data }: CommandRequest, answer: Answer<T>) {
    this.tag = tag;
    this.#answer = answer;
    this.name = name;
    this.memory = data.kind === 'registered' ? data.memory : undefined;
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
  }

  /** Made for whoever asks: most commands end before anyone does. */
  get released(): Promise<void> {
    this.#released ??= this.#over
      ? Promise.resolve()
      : new Promise((resolve) => {
          this.#release = resolve;
        });
    return this.#released;
  }

  succeed(result: bigint, data: Uint8Array): void {
    this.resolve(this.#answer(result, data));
  }

  /** Nothing can touch its memory any more. */
  release(): void {
    this.#over = true;
    this.memory?.endUse();
    this.#release?.();
  }
}

/** How native reports a connection that did not come about. */
export type ConnectFailedEvent = Extract<QueueEvent, { readonly kind: 'connectFailed' }>;
export type EstablishedEvent = Extract<QueueEvent, { readonly kind: 'queueEstablished' }>;

interface AnyQueueOptions {
  readonly runtime: Runtime;
  readonly clock: Clock;
  /** For messages: "I/O queue 1 of nqn…". */
  readonly label: string;
  /** The queue ended without `close`. */
  readonly onDied: (error: DisconnectedError) => void;
}

export interface QueueOptions extends AnyQueueOptions {
  readonly device: DeviceId;
  readonly connect: ConnectOptions;
}

/** What native tells of a queue over several paths. */
export type PathEvent = Extract<QueueEvent, { readonly kind: 'pathRefused' | 'pathOverdue' }>;

export interface PathQueueFields extends AnyQueueOptions {
  readonly reactor: ReactorIndex;
  readonly paths: PathQueueOptions;
  readonly onPathEvent: (event: PathEvent) => void;
}

type State = 'connecting' | 'live' | 'closing' | 'dead';

export class Queue {
  readonly #options: AnyQueueOptions;
  readonly #door: Door;
  readonly #id: QueueId;
  readonly #onPathEvent: ((event: PathEvent) => void) | undefined;
  readonly #pending = new Map<Tag, Pending>();
  readonly #onClosed: (() => void)[] = [];
  /** Commands that a dying queue gave back: `queueClosed` follows, and knows why it died. */
  readonly #dying: Pending[] = [];
  readonly #deadlines: Deadlines<Pending>;
  #state: State;
  #connected: ((result: EstablishedEvent | ConnectFailedEvent) => void) | undefined;
  #diedBecause = '';

  private constructor(
    options: AnyQueueOptions,
    id: QueueId,
    state: State,
    onPathEvent?: (event: PathEvent) => void,
  ) {
    this.#options = options;
    this.#door = options.runtime.door;
    this.#deadlines = new Deadlines(options.clock, (pending, ms) => {
      const { name, released } = pending;
      this.#giveUp(pending, new CommandTimeoutError(name, ms, released));
    });
    this.#id = id;
    this.#state = state;
    this.#onPathEvent = onPathEvent;
    options.runtime.handleQueue(this.#id, (event) => {
      this.#handle(event);
    });
  }

  /** Resolves with the live queue, or with native's report why there is none. */
  static async connect(
    options: QueueOptions,
    signal?: AbortSignal,
  ): Promise<
    { queue: Queue; event: EstablishedEvent } | { queue: undefined; event: ConnectFailedEvent }
  > {
    const id = options.runtime.door.connect(options.device, options.connect);
    const queue = new Queue(options, id, 'connecting');
    const onAbort = (): void => {
      if (queue.#state === 'connecting') queue.#door.closeQueue(queue.#id);
    };
    signal?.addEventListener('abort', onAbort, { once: true });
    const event = await new Promise<EstablishedEvent | ConnectFailedEvent>((resolve) => {
      queue.#connected = resolve;
    });
    signal?.removeEventListener('abort', onAbort);
    return event.kind === 'queueEstablished' ? { queue, event } : { queue: undefined, event };
  }

  /** A queue over several paths; live at once, although it has none yet. */
  static overPaths(fields: PathQueueFields): Queue {
    const id = fields.runtime.door.openPathQueue(fields.reactor, fields.paths);
    return new Queue(fields, id, 'live', fields.onPathEvent);
  }

  get id(): QueueId {
    return this.#id;
  }

  get live(): boolean {
    return this.#state === 'live';
  }

  /** Commands that native has not finished, those given up included. */
  get outstanding(): number {
    return this.#pending.size;
  }

  run(request: CommandRequest, options: CommandOptions): RunningCommand {
    return this.runFor(allOfIt, request, options);
  }

  /** The same; `result` resolves with what `answer` makes of it: no second promise has to wait for the first. */
  runFor<T>(
    answer: Answer<T>,
    request: CommandRequest,
    options: CommandOptions,
  ): RunningCommand<T> {
    if (this.#state !== 'live') {
      const error = new DisconnectedError(`${request.name}: ${this.#gone()}`);
      return { result: Promise.reject(error), released: Promise.resolve() };
    }
    if (options.signal?.aborted === true) {
      const released = Promise.resolve();
      const error = new CommandAbortedError(request.name, options.signal.reason, released);
      return { result: Promise.reject(error), released };
    }
    const tag = this.#submit(request);
    this.#options.runtime.submitted();
    const pending = new Pending(tag, request, answer);
    // Only its answer knows the type.
    this.#pending.set(tag, pending as Pending);
    this.#watch(pending as Pending, options);
    return pending;
  }

  /** Graceful: resolves when native has closed it. Commands still outstanding end with DisconnectedError. */
  close(): Promise<void> {
    if (this.#state === 'dead') return Promise.resolve();
    const closed = new Promise<void>((resolve) => {
      this.#onClosed.push(resolve);
    });
    if (this.#state !== 'closing') {
      this.#state = 'closing';
      this.#door.closeQueue(this.#id);
    }
    return closed;
  }

  #submit(request: CommandRequest): Tag {
    const { sqe, data } = request;
    switch (data.kind) {
      case 'none':
        return this.#door.submit(this.#id, sqe, 'none', 0);
      case 'send':
        return this.#door.submit(this.#id, sqe, 'toController', data.bytes);
      case 'receive':
        return this.#door.submit(this.#id, sqe, 'toHost', data.length);
      case 'registered': {
        const { memory, direction, offset, length } = data;
        const tag = this.#door.submitBuffer(this.#id, sqe, direction, memory.id, offset, length);
        memory.beginUse();
        return tag;
      }
    }
  }

  #watch(pending: Pending, { signal, timeoutMs }: CommandOptions): void {
    if (timeoutMs > 0) pending.deadline = this.#deadlines.add(timeoutMs, pending);
    if (!signal) return;
    const onAbort = (): void => {
      const { name, released } = pending;
      this.#giveUp(pending, new CommandAbortedError(name, signal.reason, released));
    };
    pending.signal = signal;
    pending.onAbort = onAbort;
    signal.addEventListener('abort', onAbort, { once: true });
  }

  #unwatch(pending: Pending): void {
    pending.deadline?.remove();
    if (pending.onAbort) pending.signal?.removeEventListener('abort', pending.onAbort);
    pending.deadline = undefined;
    pending.onAbort = undefined;
  }

  #giveUp(pending: Pending, error: Error): void {
    this.#unwatch(pending);
    if (pending.settled) return;
    pending.settled = true;
    pending.reject(error);
    if (this.#state === 'live') this.#door.cancel(this.#id, pending.tag);
  }

  #handle(event: QueueEvent): void {
    switch (event.kind) {
      case 'queueEstablished':
        if (this.#state === 'connecting') this.#state = 'live';
        this.#connected?.(event);
        return;
      case 'connectFailed':
        this.#state = 'dead';
        this.#connected?.(event);
        return;
      case 'completion':
        this.#complete(event);
        return;
      case 'queueClosed':
        this.#closed(event.reason);
        return;
      case 'pathRefused':
      case 'pathOverdue':
        this.#onPathEvent?.(event);
        return;
      // Events of other queues; native never sends them for ours.
      case 'capsule':
      case 'ioError':
      case 'queueQuiet':
        return;
    }
  }

  #complete(event: Extract<QueueEvent, { readonly kind: 'completion' }>): void {
    const pending = this.#pending.get(event.tag);
    if (!pending) return;
    this.#pending.delete(event.tag);
    this.#unwatch(pending);
    pending.release();
    if (pending.settled) return;
    if (event.transport !== 'ok') {
      this.#dying.push(pending);
      return;
    }
    pending.settled = true;
    const { status, result, data } = event;
    if (status === 0) pending.succeed(result, data);
    else pending.reject(new NvmeStatusError(status, pending.name, { result }));
  }

  #closed(reason: string): void {
    const expected = this.#state === 'closing';
    this.#state = 'dead';
    this.#diedBecause = reason;
    for (const pending of this.#pending.values()) {
      this.#unwatch(pending);
      pending.release();
      this.#dying.push(pending);
    }
    this.#pending.clear();
    this.#deadlines.stop();
    for (const { name, settled, reject } of this.#dying.splice(0)) {
      if (!settled) reject(new DisconnectedError(`${name}: ${this.#gone()}`));
    }
    for (const resolve of this.#onClosed) resolve();
    if (!expected) this.#options.onDied(new DisconnectedError(this.#gone()));
  }

  #gone(): string {
    const { label } = this.#options;
    if (this.#state === 'closing')
      return `${label} is being closed: its controller was disconnected or lost`;
    if (this.#diedBecause !== '') return `${label} was lost: ${this.#diedBecause}`;
    return this.#state === 'dead' ? `${label} was lost` : `${label} is not connected`;
  }
}
