/**
 * How long groups stay in the state "change": hosts were told ANATT, and what stays longer makes them give the controller up
 * (Linux resets it after twice ANATT). Tells once when that time is over.
 */
import type { Clock, Timer } from '../native/common/clock.ts';
import { ANATT_SECONDS } from './ana.ts';

const MS_PER_SECOND = 1000;

export class TransitionWatch {
  readonly #clock: Clock;
  readonly #late: (port: string, group: number) => void;
  readonly #timers = new Map<string, Timer>();

  constructor(clock: Clock, late: (port: string, group: number) => void) {
    this.#clock = clock;
    this.#late = late;
  }

  /** The group is in that state at the port now, or is not. */
  update(port: string, group: number, changing: boolean): void {
    const key = `${group} ${port}`;
    const timer = this.#timers.get(key);
    if (changing === (timer !== undefined)) return;
    if (timer) {
      timer.cancel();
      this.#timers.delete(key);
      return;
    }
    const late = (): void => {
      this.#late(port, group);
    };
    this.#timers.set(key, this.#clock.after(ANATT_SECONDS * MS_PER_SECOND, late));
  }

  stop(): void {
    for (const timer of this.#timers.values()) timer.cancel();
    this.#timers.clear();
  }
}
