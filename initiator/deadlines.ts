/**
 * Deadlines of many commands, with a timer for each distinct time limit instead of one for each command: limits repeat, so
 * commands of one limit fall due in the order they began. Runs on the JavaScript thread.
 */
import type { Clock, Timer } from '../native/common/clock.ts';

/** One command's deadline: until it falls due or is removed. */
export class Deadline<T> {
  readonly at: number;
  readonly command: T;
  readonly #of: Limit<T>;
  previous: Deadline<T> | undefined;
  next: Deadline<T> | undefined;
  #listed = true;

  constructor(of: Limit<T>, at: number, command: T) {
    this.#of = of;
    this.at = at;
    this.command = command;
  }

  /** Does nothing when it fell due or was removed before. */
  remove(): void {
    if (!this.#listed) return;
    this.#listed = false;
    this.#of.unlink(this);
  }
}

/** All deadlines of one time limit, the earliest first. */
class Limit<T> {
  readonly #clock: Clock;
  readonly #ms: number;
  #head: Deadline<T> | undefined;
  #tail: Deadline<T> | undefined;
  #timer: Timer | undefined;
  readonly #onDue: (command: T, ms: number) => void;
  readonly #onEmpty: () => void;

  /** `onEmpty`: its timer fired and found nothing to wait for. */
  constructor(
    clock: Clock,
    ms: number,
    onDue: (command: T, ms: number) => void,
    onEmpty: () => void,
  ) {
    this.#clock = clock;
    this.#ms = ms;
    this.#onDue = onDue;
    this.#onEmpty = onEmpty;
  }

  add(command: T): Deadline<T> {
    const deadline = new Deadline(this, this.#clock.now() + this.#ms, command);
    deadline.previous = this.#tail;
    if (this.#tail) this.#tail.next = deadline;
    else this.#head = deadline;
    this.#tail = deadline;
    this.#timer ??= this.#arm(this.#ms);
    return deadline;
  }

  unlink(deadline: Deadline<T>): void {
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
      this.#onDue(due.command, this.#ms);
    }
    // `onDue` may have added some, and set the timer with them.
    if (this.#head) this.#timer ??= this.#arm(this.#head.at - this.#clock.now());
    else this.#onEmpty();
  }
}

export class Deadlines<T> {
  readonly #clock: Clock;
  readonly #onDue: (command: T, ms: number) => void;
  readonly #limits = new Map<number, Limit<T>>();

  /** `onDue` is told once of each deadline that was not removed before, and its time limit. */
  constructor(clock: Clock, onDue: (command: T, ms: number) => void) {
    this.#clock = clock;
    this.#onDue = onDue;
  }

  /** Timers that are set. */
  get timers(): number {
    return this.#limits.size;
  }

  /** Due `ms` from now. */
  add(ms: number, command: T): Deadline<T> {
    let limit = this.#limits.get(ms);
    if (!limit) {
      limit = new Limit(this.#clock, ms, this.#onDue, () => this.#limits.delete(ms));
      this.#limits.set(ms, limit);
    }
    return limit.add(command);
  }

  /** No timer is left. To be called when no command is on its way any more. */
  stop(): void {
    for (const limit of this.#limits.values()) limit.stop();
    this.#limits.clear();
  }
}
