/** The leases of a door without native code behind it, on a test's clock. */
import type { Clock } from '../../native/common/clock.ts';
import type { DoorEvent, LeaseId, QueueId } from '../../native/index.ts';
import { AdminOpcode } from '../../native/wire/opcodes.ts';
import { systemError } from './system-error.ts';

interface Lease {
  termMs: number;
  deadline: number;
}

export abstract class FakeLeases {
  leaseClock: Pick<Clock, 'now'> = { now: () => 0 };
  readonly leases = new Map<LeaseId, Lease>();
  readonly #admin = new Map<QueueId, LeaseId>();
  #nextLease = 1;

  openLease(): LeaseId {
    const id = this.#nextLease++;
    this.leases.set(id, { termMs: Infinity, deadline: Infinity });
    return id;
  }

  setLease(id: LeaseId, ms: number): void {
    this.#lease(id).termMs = ms === 0 ? Infinity : ms;
    this.#renew(id);
  }

  leaseLeft(id: LeaseId): number {
    return Math.max(0, this.#lease(id).deadline - this.leaseClock.now());
  }

  closeLease(id: LeaseId): void {
    this.#lease(id);
    this.leases.delete(id);
  }

  renewLeaseBy(queue: QueueId, lease: LeaseId): void {
    this.#lease(lease);
    this.#admin.set(queue, lease);
  }

  /** A Keep Alive that comes when the lease is over ends its queue, and goes no further. Another one renews it. */
  protected tooLate(event: DoorEvent): boolean {
    if (event.kind !== 'capsule' || event.sqe[0] !== AdminOpcode.keepAlive) return false;
    const lease = this.#admin.get(event.queue);
    if (lease === undefined || (this.leases.has(lease) && this.#renew(lease))) return false;
    this.endQueue(event.queue, 'no Keep Alive came in time');
    return true;
  }

  abstract endQueue(queue: QueueId, reason: string): void;

  #renew(id: LeaseId): boolean {
    if (this.leaseLeft(id) === 0) return false;
    const lease = this.#lease(id);
    lease.deadline = this.leaseClock.now() + lease.termMs;
    return true;
  }

  #lease(id: LeaseId): Lease {
    const lease = this.leases.get(id);
    if (!lease) throw systemError('ENOENT', `no lease ${id}`);
    return lease;
  }
}
