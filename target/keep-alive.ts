/**
 * The keep alive timer of one controller (NVMe Base 2.1 section 3.9). Command based: only Keep Alive (and setting the timeout)
 * restarts it; timeout 0 means none. The time itself is a lease in native, which renews it when a Keep Alive arrives at the admin
 * queue and begins no write of the controller once it is over (docs/stale-writes.md). Here at most one timer looks at it.
 */
import type { Clock, Timer } from '../native/common/clock.ts';
import type { LeaseDoor, LeaseId } from '../native/index.ts';

/** KAS: granularity in 100 ms units, as Identify announces it. */
export const KEEP_ALIVE_GRANULARITY = 10;
const GRANULARITY_MS = KEEP_ALIVE_GRANULARITY * 100;

/** What a discovery controller takes for a timeout of 0. */
export const DISCOVERY_KEEP_ALIVE_MS = 120_000;
/** 49 days: what the door takes. */
const LEASE_MS_MAX = 0xffff_ffff;

type Leases = Omit<LeaseDoor, 'renewLeaseBy'>;

export class KeepAlive {
  /** For the queues of the controller. */
  readonly lease: LeaseId;
  readonly #clock: Clock;
  readonly #door: Leases;
  readonly #expired: () => void;
  #timeoutMs = 0;
  #timer: Timer | undefined;
  #ended = false;

  constructor(clock: Clock, door: Leases, expired: () => void) {
    this.#clock = clock;
    this.#door = door;
    this.#expired = expired;
    this.lease = door.openLease();
  }

  /** As the host set it, not rounded. */
  get timeoutMs(): number {
    return this.#timeoutMs;
  }

  /** The host is given the whole granule in which its timeout ends. */
  get roundedMs(): number {
    return Math.ceil(this.#timeoutMs / GRANULARITY_MS) * GRANULARITY_MS;
  }

  /** No Keep Alive came in time, and one that comes now changes nothing. */
  get over(): boolean {
    return !this.#ended && this.#door.leaseLeft(this.lease) === 0;
  }

  set(timeoutMs: number): void {
    this.#timeoutMs = timeoutMs;
    this.#door.setLease(this.lease, Math.min(this.roundedMs, LEASE_MS_MAX));
    this.#arm();
  }

  /** `lease` must be on no queue that is still to be bound. */
  end(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    this.#ended = true;
    this.#door.closeLease(this.lease);
  }

  /** For the time that is left now: native may put it off meanwhile. */
  #arm(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    const left = this.#door.leaseLeft(this.lease);
    if (left === Infinity) return;
    this.#timer = this.#clock.after(Math.ceil(left), () => {
      if (this.over) this.#expired();
      else this.#arm();
    });
  }
}
