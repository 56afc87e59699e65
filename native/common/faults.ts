/**
 * Faults that a device of the soft provider injects into its own packets: rules for tests of what becomes of connections.
 * A device takes them only when it was opened for it (`faultInjection`), so that nobody comes upon them by accident. Native
 * checks every value and names the field that is wrong (native/rdma/fault_rules.h).
 */

/** Of the first rule that fits a packet's direction and peer, all faults apply; of the others, none. */
export interface FaultRule {
  /** Packets that come in, that go out, or (the default) both. */
  readonly direction?: 'in' | 'out' | 'both';
  /** Numeric IPv4 or IPv6 address; absent: every peer. */
  readonly peer?: string;
  /** Probabilities, 0 to 1; default 0. `drop: 1` is a black hole, which swallows ICMP of the peer too. */
  readonly drop?: number;
  readonly duplicate?: number;
  readonly reorder?: number;
  /** Every packet waits so long and a random time up to `jitterMs`, and keeps its place. Up to 60 s, fractions allowed. */
  readonly delayMs?: number;
  readonly jitterMs?: number;
  /** A reordered packet waits so long besides, while others pass it. Default 1. */
  readonly reorderMs?: number;
}

export interface Faults {
  /** Up to 16; empty: no faults. */
  readonly rules: readonly FaultRule[];
  /** The same seed and the same packets meet the same faults. Default 1. */
  readonly seed?: number;
  /** Packets that may wait in each direction of each reactor; more are dropped and counted. Default 4096, up to 65536. */
  readonly queuePackets?: number;
}

export const NO_FAULTS: Faults = Object.freeze({ rules: Object.freeze([]) });

/** What has devices that can be told of faults: a target, a controller of an initiator. */
export interface FaultInjection {
  /**
   * From now on, instead of those before: what waits under the old rules goes on its way. Throws with `code` EPERM where
   * the device was not opened for faults, ENOTSUP on verbs, and a RangeError or TypeError that names the field for rules
   * that make no sense.
   */
  injectFaults(faults: Faults): void;
}

/** For whoever takes rules from elsewhere: a test, a socket, another process. */
export function applyFaults(where: FaultInjection, faults: Faults): void {
  where.injectFaults(faults);
}
