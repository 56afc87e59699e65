/**
 * Time as something passed in, so that tests turn it by hand. Milliseconds on a clock that never jumps; not the time of day.
 */

export interface Timer {
  /** Does nothing when the timer has fired. */
  cancel(): void;
}

export interface Clock {
  /** Milliseconds since some start. */
  now(): number;
  /** Runs `callback` once, not before `ms` have passed. */
  after(ms: number, callback: () => void): Timer;
}

/** Node takes longer delays for 1 ms. */
const TIMEOUT_MS_MAX = 0x7fff_ffff;

export const systemClock: Clock = {
  now: () => performance.now(),
  after(ms, callback) {
    let handle: NodeJS.Timeout;
    const arm = (left: number): void => {
      const step = Math.min(left, TIMEOUT_MS_MAX);
      handle = setTimeout(() => {
        if (left > step) arm(left - step);
        else callback();
      }, step);
    };
    arm(Math.max(0, ms));
    return {
      cancel: () => {
        clearTimeout(handle);
      },
    };
  },
};

interface ManualTimer {
  readonly at: number;
  readonly order: number;
  readonly callback: () => void;
}

/** A clock that stands still until `advance`. */
export class ManualClock implements Clock {
  #now = 0;
  #order = 0;
  readonly #timers = new Set<ManualTimer>();

  /** Timers that have not fired and were not cancelled. */
  get pending(): number {
    return this.#timers.size;
  }

  now(): number {
    return this.#now;
  }

  after(ms: number, callback: () => void): Timer {
    const timer = { at: this.#now + Math.max(0, ms), order: this.#order++, callback };
    this.#timers.add(timer);
    return {
      cancel: () => {
        this.#timers.delete(timer);
      },
    };
  }

  /** Runs what falls due, in order of time; also timers set meanwhile. */
  advance(ms: number): void {
    const end = this.#now + ms;
    for (;;) {
      const next = this.#earliest();
      if (!next || next.at > end) break;
      this.#timers.delete(next);
      this.#now = next.at;
      next.callback();
    }
    this.#now = end;
  }

  #earliest(): ManualTimer | undefined {
    let best: ManualTimer | undefined;
    for (const timer of this.#timers) {
      const sooner =
        !best || timer.at < best.at || (timer.at === best.at && timer.order < best.order);
      if (sooner) best = timer;
    }
    return best;
  }
}

export function sleep(clock: Clock, ms: number): Promise<void> {
  return new Promise((resolve) => {
    clock.after(ms, resolve);
  });
}

/** Waits for `promise`, but not longer than `ms`; true when it came in time. Leaves no timer behind. */
export async function within(
  clock: Clock,
  ms: number,
  promise: Promise<unknown>,
): Promise<boolean> {
  let timer: Timer | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = clock.after(ms, () => {
      resolve(false);
    });
  });
  try {
    return await Promise.race([promise.then(() => true), late]);
  } finally {
    timer?.cancel();
  }
}
