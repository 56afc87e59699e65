/**
 * One connected queue as the control plane sees it: who it belongs to, and the way answers go back. Native owns the queue pair;
 * after `closed` nothing of it is left there.
 */
import type { Door, QueueId, Tag } from '../native/index.ts';
import { StateMachine } from '../native/common/state-machine.ts';
import type { Arrival } from './context.ts';
import type { Controller } from './controller.ts';
import type { Failure, Reply } from './outcome.ts';

/**
 *   unconnected → connecting → admin | io → closing → closed
 * Any state may become closing or closed; a refused Connect goes back to unconnected.
 */
export type QueueState = 'unconnected' | 'connecting' | 'admin' | 'io' | 'closing' | 'closed';

export class TargetQueue {
  readonly id: QueueId;
  readonly arrival: Arrival;
  /** Queue id in the CM private data; Connect must name the same. */
  readonly cmQid: number;
  /** Entries, as agreed at connection management. */
  readonly depth: number;
  readonly closed: Promise<void>;
  /** No command of it begins any more, and none can change a backing. With `closed` at the latest. */
  readonly quiet: Promise<void>;
  controller: Controller | undefined;
  readonly #door: Door;
  readonly #machine = new StateMachine<QueueState>('queue', 'unconnected', {
    unconnected: ['connecting', 'closing', 'closed'],
    connecting: ['unconnected', 'admin', 'io', 'closing', 'closed'],
    admin: ['closing', 'closed'],
    io: ['closing', 'closed'],
    closing: ['closed'],
    closed: [],
  });
  #resolveClosed: () => void = () => undefined;
  #resolveQuiet: () => void = () => undefined;

  constructor(door: Door, id: QueueId, arrival: Arrival, cmQid: number, depth: number) {
    this.#door = door;
    this.id = id;
    this.arrival = arrival;
    this.cmQid = cmQid;
    this.depth = depth;
    this.closed = new Promise((resolve) => {
      this.#resolveClosed = resolve;
    });
    this.quiet = new Promise((resolve) => {
      this.#resolveQuiet = resolve;
    });
  }

  get state(): QueueState {
    return this.#machine.state;
  }

  get live(): boolean {
    return !this.#machine.is('closing', 'closed');
  }

  move(to: QueueState): void {
    this.#machine.move(to);
  }

  complete(tag: Tag, outcome: Reply | Failure): void {
    // The tags of a queue that is going are native's to end.
    if (!this.live) return;
    if (outcome.kind === 'failure') {
      this.#door.complete(this.id, tag, outcome.result, outcome.status);
    } else {
      this.#door.complete(this.id, tag, outcome.result, 0, outcome.data);
    }
  }

  /** Graceful; `closed` follows. */
  close(): void {
    if (!this.live) return;
    this.#machine.move('closing');
    this.#door.closeQueue(this.id);
  }

  /** Native says so; `ended` follows. */
  quieted(): void {
    this.#resolveQuiet();
  }

  /** Native's last word. */
  ended(): void {
    this.#resolveQuiet();
    this.#machine.move('closed');
    this.#resolveClosed();
  }
}
