/**
 * Completion queue entry, 16 bytes (NVMe Base 2.1 section 4.2). On a fabric the phase bit is always 0. Bytes only; the meaning of
 * status codes stands in status.ts.
 */
import { bits, flag, layout, u16, u64 } from './layout.ts';
import type { RecordOf } from './layout.ts';

export const CQE_BYTES = 16;

const status = u16(14);

export const Cqe = layout(CQE_BYTES, {
  /** Dwords 0 and 1: what the command returns. */
  result: u64(0),
  sqhd: u16(8),
  sqid: u16(10),
  cid: u16(12),
  phase: flag(status, 0),
  sc: bits(status, 1, 8),
  sct: bits(status, 9, 3),
  /** Command retry delay: which of the controller's CRDT times. */
  crd: bits(status, 12, 2),
  more: flag(status, 14),
  /** Do not retry. */
  dnr: flag(status, 15),
});
export type Cqe = RecordOf<typeof Cqe>;

/** The status without the phase bit, as the door carries it: SC | SCT << 8 | CRD << 11 | More << 13 | DNR << 14. */
export const CqeStatus = layout(CQE_BYTES, { field: bits(status, 1, 15) });

/** SQHD that says flow control is off, in a Connect response. */
export const SQHD_NO_FLOW_CONTROL = 0xffff;
