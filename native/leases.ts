/** The part of the door that is about leases (native/reactor/lease.h). */
import type { QueueId } from './index.ts';

export type LeaseId = number;

export interface LeaseDoor {
  /**
   * A lease of a controller: how long after its last Keep Alive it may begin to change data. Native renews it when a Keep Alive
   * arrives. Once it is over it stays over, and queues end that would change data, or get a Keep Alive. Counted on a clock that
   * runs on while the process is stopped.
   */
  openLease(): LeaseId;
  /** Keep Alives that arrive at this admin queue renew it. */
  renewLeaseBy(queue: QueueId, lease: LeaseId): void;
  /** From now on, and after each Keep Alive; 0: for ever, as at first. */
  setLease(lease: LeaseId, ms: number): void;
  /** Milliseconds; 0: it is over; Infinity: it has no end. */
  leaseLeft(lease: LeaseId): number;
  closeLease(lease: LeaseId): void;
}
