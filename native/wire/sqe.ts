/**
 * Submission queue entries, 64 bytes (NVMe Base 2.1 section 4.1, NVM Command Set 1.1 section 3). `Sqe` is the general form; the
 * others are views of the same bytes for one command. Bytes only: counts are as on the wire (0-based where the
 * specification says so).
 */
import { bits, bytes, flag, layout, u16, u32, u64, u8 } from './layout.ts';
import type { Field, Layout, RecordOf } from './layout.ts';

export const SQE_BYTES = 64;

/** PSDT value of every command on a fabric: SGL, metadata pointer unused. */
export const PSDT_SGL = 1;

export const NSID_ALL = 0xffff_ffff;

const flags = u8(1);
const cdw10 = u32(40);
const cdw11 = u32(44);
const cdw12 = u32(48);
const cdw13 = u32(52);
const cdw14 = u32(56);

const header = {
  opcode: u8(0),
  fuse: bits(flags, 0, 2),
  psdt: bits(flags, 6, 2),
  cid: u16(2),
  nsid: u32(4),
  sgl1: bytes(24, 16),
};

/** A view: the fields all commands share, and those of one command. */
function command<F extends Readonly<Record<string, Field<unknown>>>>(
  fields: F,
): Layout<typeof header & F> {
  return layout(SQE_BYTES, { ...header, ...fields });
}

export const Sqe = command({
  cdw2: u32(8),
  cdw3: u32(12),
  mptr: u64(16),
  cdw10,
  cdw11,
  cdw12,
  cdw13,
  cdw14,
  cdw15: u32(60),
});
export type Sqe = RecordOf<typeof Sqe>;

export const IdentifyCommand = command({
  cns: bits(cdw10, 0, 8),
  cntid: bits(cdw10, 16, 16),
  cnssid: bits(cdw11, 0, 16),
  csi: bits(cdw11, 24, 8),
  uuidIndex: bits(cdw14, 0, 7),
});
export type IdentifyCommand = RecordOf<typeof IdentifyCommand>;

export const GetLogPageCommand = command({
  lid: bits(cdw10, 0, 8),
  lsp: bits(cdw10, 8, 7),
  /** Retain Asynchronous Event. */
  rae: flag(cdw10, 15),
  /** Number of dwords, 0-based, low and high half. */
  numdl: bits(cdw10, 16, 16),
  numdu: bits(cdw11, 0, 16),
  lsi: bits(cdw11, 16, 16),
  /** Log page offset in bytes (or an index when `ot` is set). */
  lpo: u64(48),
  uuidIndex: bits(cdw14, 0, 7),
  ot: flag(cdw14, 23),
  csi: bits(cdw14, 24, 8),
});
export type GetLogPageCommand = RecordOf<typeof GetLogPageCommand>;

export const GetFeaturesCommand = command({
  fid: bits(cdw10, 0, 8),
  /** 0 current, 1 default, 2 saved, 3 supported capabilities. */
  sel: bits(cdw10, 8, 3),
  cdw11,
  cdw12,
  cdw13,
  uuidIndex: bits(cdw14, 0, 7),
});
export type GetFeaturesCommand = RecordOf<typeof GetFeaturesCommand>;

export const SetFeaturesCommand = command({
  fid: bits(cdw10, 0, 8),
  save: flag(cdw10, 31),
  cdw11,
  cdw12,
  cdw13,
  uuidIndex: bits(cdw14, 0, 7),
});
export type SetFeaturesCommand = RecordOf<typeof SetFeaturesCommand>;

export const AbortCommand = command({
  sqid: bits(cdw10, 0, 16),
  abortedCid: bits(cdw10, 16, 16),
});
export type AbortCommand = RecordOf<typeof AbortCommand>;

/** Ends another controller of the subsystem (NVMe Base 2.3 section 5.4.3). */
export const CrossControllerResetCommand = command({
  /** The controller, and its CIU and CIRN as Identify gave them. */
  icid: bits(cdw10, 0, 16),
  ciu: bits(cdw10, 16, 8),
  cirn: u64(48),
});
export type CrossControllerResetCommand = RecordOf<typeof CrossControllerResetCommand>;

const resetDword0 = u32(0);

/** Dwords 0 and 1 of its completion. `immediate`: the controller has ended already; else the log page tells when. */
export const CrossControllerResetResult = layout(8, {
  immediate: flag(resetDword0, 0),
  validated: flag(resetDword0, 1),
  initiated: flag(resetDword0, 2),
});
export type CrossControllerResetResult = RecordOf<typeof CrossControllerResetResult>;

/** Read, Write, Compare, Write Zeroes, Verify. */
export const BlockCommand = command({
  slba: u64(40),
  /** Number of logical blocks, 0-based. */
  nlb: bits(cdw12, 0, 16),
  /** Write Zeroes: deallocate. */
  deac: flag(cdw12, 25),
  prinfo: bits(cdw12, 26, 4),
  fua: flag(cdw12, 30),
  limitedRetry: flag(cdw12, 31),
  cdw13,
  cdw14,
  cdw15: u32(60),
});
export type BlockCommand = RecordOf<typeof BlockCommand>;

export const DatasetManagementCommand = command({
  /** Number of ranges, 0-based. */
  nr: bits(cdw10, 0, 8),
  idr: flag(cdw11, 0),
  idw: flag(cdw11, 1),
  ad: flag(cdw11, 2),
});
export type DatasetManagementCommand = RecordOf<typeof DatasetManagementCommand>;

export const DatasetManagementRange = layout(16, {
  cattr: u32(0),
  nlb: u32(4),
  slba: u64(8),
});
export type DatasetManagementRange = RecordOf<typeof DatasetManagementRange>;

export const DSM_RANGES_MAX = 256;
