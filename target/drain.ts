/**
 * Taking a target out of service while it runs: no new associations, those there are end when their I/O has, and discovery shows no
 * subsystem any more. Ports stay open, so that hosts hear "busy, try again" and can follow referrals.
 */
import { within } from '../native/common/clock.ts';
import type { Clock } from '../native/common/clock.ts';
import type { Controller } from './controller.ts';

export interface DrainReport {
  /** Associations that hosts ended by themselves in the time they were given. */
  readonly left: number;
  /** Associations that were ended here, after their I/O in flight. */
  readonly ended: number;
  /** False: `resume` came first. */
  readonly drained: boolean;
}

export interface DrainTools {
  readonly clock: Clock;
  /** I/O controllers that are there now. */
  controllers(): readonly Controller[];
  /** Discovery shows something else now. */
  changed(): void;
  /** Asks hosts to take their other paths; resolves when those that know how have. */
  farewell(): Promise<void>;
  /** They may come back. */
  welcome(): void;
}

export class Drain {
  readonly #tools: DrainTools;
  #active = false;
  /** Ends what waits, when the last controller leaves or when it is resumed. */
  readonly #waiting = new Set<() => void>();

  constructor(tools: DrainTools) {
    this.#tools = tools;
  }

  /** Whether new associations are refused. */
  get active(): boolean {
    return this.#active;
  }

  /** Gives hosts `waitMs` to leave by themselves, then ends the associations that are left. Stays drained until `resume`. */
  async run(waitMs: number): Promise<DrainReport> {
    if (!this.#active) {
      this.#active = true;
      this.#tools.changed();
    }
    const found = this.#tools.controllers().length;
    if (found > 0 && waitMs > 0) await this.#wait(waitMs);
    if (this.active) await this.#tools.farewell();
    const rest = this.#tools.controllers();
    const left = Math.max(0, found - rest.length);
    // Read again: meanwhile it may have been resumed.
    if (!this.active) return { left, ended: 0, drained: false };
    await Promise.all(rest.map((controller) => controller.close('the target is drained')));
    return { left, ended: rest.length, drained: true };
  }

  /** Takes hosts again. */
  resume(): void {
    if (!this.#active) return;
    this.#active = false;
    this.#wake();
    this.#tools.welcome();
    this.#tools.changed();
  }

  /** A controller has gone. */
  controllerGone(): void {
    if (this.#waiting.size > 0 && this.#tools.controllers().length === 0) this.#wake();
  }

  #wake(): void {
    for (const end of this.#waiting) end();
  }

  async #wait(waitMs: number): Promise<void> {
    let end = (): void => undefined;
    const woken = new Promise<void>((resolve) => {
      end = resolve;
    });
    this.#waiting.add(end);
    await within(this.#tools.clock, waitMs, woken);
    this.#waiting.delete(end);
  }
}
