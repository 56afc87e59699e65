/**
 * Asymmetric Namespace Access (NVMe Base 2.1 section 8.1.1): states, and the log page (section 5.1.12.1.13). Bytes only.
 */
import { bits, layout, u16, u32, u64, u8, viewOf } from './layout.ts';
import type { RecordOf } from './layout.ts';

export const AnaState = {
  optimized: 0x1,
  nonOptimized: 0x2,
  inaccessible: 0x3,
  persistentLoss: 0x4,
  change: 0xf,
} as const;

/** Bits of ANACAP. Bit 6 is missing where a namespace may move to another group while hosts are attached. */
export const AnaCapability = {
  optimized: 1 << 0,
  nonOptimized: 1 << 1,
  inaccessible: 1 << 2,
  persistentLoss: 1 << 3,
  change: 1 << 4,
  fixedGroup: 1 << 6,
  groupByHost: 1 << 7,
} as const;

/** LSP bit 0 of Get Log Page, Return Groups Only: no NSIDs. */
export const ANA_GROUPS_ONLY = 1;

export const AnaLogHeader = layout(16, {
  /** Grows with every change of the page. */
  chgcnt: u64(0),
  ngrps: u16(8),
});
export type AnaLogHeader = RecordOf<typeof AnaLogHeader>;

/** NNSIDS times a 32-bit NSID follow, ascending. */
export const AnaGroupDescriptor = layout(32, {
  grpid: u32(0),
  nnsids: u32(4),
  chgcnt: u64(8),
  state: bits(u8(16), 0, 4),
});
export type AnaGroupDescriptor = RecordOf<typeof AnaGroupDescriptor>;

const NSID_BYTES = 4;

export interface AnaLogGroup {
  readonly group: number;
  readonly changeCount: bigint;
  readonly state: number;
  readonly nsids: readonly number[];
}

export function encodeAnaLog(changeCount: bigint, groups: readonly AnaLogGroup[]): Uint8Array {
  const bytes = groups.reduce(
    (sum, { nsids }) => sum + AnaGroupDescriptor.size + nsids.length * NSID_BYTES,
    AnaLogHeader.size,
  );
  const page = new Uint8Array(bytes);
  AnaLogHeader.write(page, 0, { chgcnt: changeCount, ngrps: groups.length });
  const view = viewOf(page);
  let at = AnaLogHeader.size;
  for (const { group, changeCount: chgcnt, state, nsids } of groups) {
    AnaGroupDescriptor.write(page, at, { grpid: group, nnsids: nsids.length, chgcnt, state });
    at += AnaGroupDescriptor.size;
    for (const nsid of nsids) {
      view.setUint32(at, nsid, true);
      at += NSID_BYTES;
    }
  }
  return page;
}
