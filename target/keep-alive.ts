/**
 * The keep alive timer of one controller (NVMe Base 2.1 section 3.9). Command based: only Keep Alive (and setting the timeout)
 * restarts it. At most one timer lives at any time; timeout 0 means none.
 */
import type { Clock, Timer } from '../native/common/clock.ts';

/** KAS: granularity in 100 ms units, as Identify announces it. */
export const KEEP_ALIVE_GRANULARITY = 10;
const GRANULARITY_MS = KEEP_ALIVE_GRANULARITY * 100;

/** What a discovery controller takes for a timeout of 0. */
export const DISCOVERY_KEEP_ALIVE_MS = 120_000;

export class KeepAlive {
  readonly #clock: Clock;
  readonly #expired: () => void;
  /** Brings in what the host has sent but nobody has looked at yet. */
  readonly #catchUp: () => void;
  #timeoutMs = 0;
  #heardAt = 0;
  #timer: Timer | undefined;

  constructor(clock: Clock, catchUp: () => void, expired: () => void) {
    this.#clock = clock;
    this.#catchUp = catchUp;
    this.#expired = expired;
  }

  /** As the host set it, not rounded. */
  get timeoutMs(): number {
    return this.#timeoutMs;
  }

  /** The host is given the whole granule in which its timeout ends. */
  get roundedMs(): number {
    return Math.ceil(this.#timeoutMs / GRANULARITY_MS) * GRANULARITY_MS;
  }

  set(timeoutMs: number): void {
    this.stop();
    this.#timeoutMs = timeoutMs;
    this.touch();
    if (timeoutMs > 0) this.#arm(this.roundedMs);
  }

  /** The host gave a sign of life. The running timer looks at the time when it fires. */
  touch(): void {
    this.#heardAt = this.#clock.now();
  }

  stop(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
  }

  #arm(ms: number): void {
    this.#timer = this.#clock.after(ms, () => {
      this.#fire();
    });
  }

  /** A busy process fires late: a Keep Alive may already wait in the event ring, so look there first. */
  #fire(): void {
    const mine = this.#timer;
    this.#catchUp();
    if (this.#timer !== mine) return;
    const left = this.#heardAt + this.roundedMs - this.#clock.now();
    if (left > 0) this.#arm(left);
    else {
      this.stop();
      this.#expired();
    }
  }
}
