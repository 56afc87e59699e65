/** Timers by what they are for, one of each at a time, and the delay between attempts to get a connection back. */
import type { Clock, Timer } from '../../native/common/clock.ts';

/** An attempt comes this part of the delay earlier at most: hosts that lost their target together come back spread over half of it. */
const JITTER = 0.5;

export function jittered(delayMs: number): number {
  return delayMs * (1 - JITTER * Math.random());
}

export class Timers<Name extends string> {
  readonly #clock: Clock;
  readonly #running = new Map<Name, { readonly timer: Timer; readonly at: number }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  has(name: Name): boolean {
    return this.#running.has(name);
  }

  /** Until it fires; undefined: it does not run. */
  leftMs(name: Name): number | undefined {
    const running = this.#running.get(name);
    return running && Math.max(0, running.at - this.#clock.now());
  }

  /** In place of one that runs for the same. */
  arm(name: Name, ms: number, then: () => void): void {
    this.cancel(name);
    const timer = this.#clock.after(ms, () => {
      this.#running.delete(name);
      then();
    });
    this.#running.set(name, { timer, at: this.#clock.now() + ms });
  }

  cancel(name: Name): void {
    this.#running.get(name)?.timer.cancel();
    this.#running.delete(name);
  }

  cancelAll(): void {
    for (const { timer } of this.#running.values()) timer.cancel();
    this.#running.clear();
  }
}
