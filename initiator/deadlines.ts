/**
 * Deadlines of many commands, with a timer for each distinct time limit instead of one for each command: limits repeat, so
 * commands of one limit fall due in the order they began. Runs on the JavaScript thread.
 */
import type { Clock, Timer } from '../native/common/clock.ts';

/** One command's deadline: until it falls due or is removed. */
export class Deadline {
  readonly at: number;
  readonly expire: () => void;
  readonly #of: Limit;
  previous: Deadline | undefined;
  next: Deadline | undefined;
  #listed = true;

  constructor(of: Limit, at: number, expire: () => void) {
    this.#of = of;
    this.at = at;
    this.expire = expire;
  }

  /** Does nothing when it fell due or was removed before. */
  remove(): void {
    if (!this.#listed) return;
    this.#listed = false;
    this.#of.unlink(this);
  }
}

/** All deadlines of one time limit, the earliest first. */
class Limit {
  readonly #clock: Clock;
  readonly #ms: number;
  #head: Deadline | undefined;
  #tail: Deadline | undefined;
  #timer: Timer | undefined;
  readonly #onEmpty: () => void;

  /** `onEmpty`: its timer fired and found nothing to wait for. */
  constructor(clock: Clock, ms: number, onEmpty: () => void) {
    this.#clock = clock;
    this.#ms = ms;
    this.#onEmpty = onEmpty;
  }

  add(expire: () => void): Deadline {
    const deadline = new Deadline(this, this.#clock.now() + this.#ms, expire);
    deadline.previous = this.#tail;
    if (this.#tail) this.#tail.next = deadline;
    else this.#head = deadline;
    this.#tail = deadline;
    this.#timer ??= this.#arm(this.#ms);
    return deadline;
  }

  unlink(deadline: Deadline): void {
    const { previous, next } = deadline;
    if (previous) previous.next = next;
    else this.#head = next;
    if (next) next.previous = previous;
    else this.#tail = previous;
    deadline.previous = deadline.next = undefined;
  }

  stop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  #arm(ms: number): Timer {
    return this.#clock.after(ms, () => {
      this.#timer = undefined;
      this.#fire();
    });
  }

  /** The timer may have been set for a command that has ended since. */
  #fire(): void {
    while (this.#head && this.#head.at <= this.#clock.now()) {
      const due = this.#head;
      due.remove();
      due.expire();
    }
    // `expire` may have added some, and set the timer with them.
    if (this.#head) this.#timer ??= this.#arm(this.#head.at - this.#clock.now());
    else this.#onEmpty();
  }
}

export class Deadlines {
  readonly #clock: Clock;
  readonly #limits = new Map<number, Limit>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Timers that are set. */
  get timers(): number {
    return this.#limits.size;
  }

  /** Runs `expire` once, `ms` from now, unless the deadline is removed before. */
  add(ms: number, expire: () => void): Deadline {
    let limit = this.#limits.get(ms);
    if (!limit) {
      limit = new Limit(this.#clock, ms, () => this.#limits.delete(ms));
      this.#limits.set(ms, limit);
    }
    return limit.add(expire);
  }

  /** No timer is left. To be called when no command is on its way any more. */
  stop(): void {
    for (const limit of this.#limits.values()) limit.stop();
    this.#limits.clear();
  }
}
