/**
 * SGL descriptors, 16 bytes (NVMe Base 2.1 section 4.3.2; the keyed form is of the RDMA transport). Bytes only.
 */
import { bits, layout, u24, u32, u64, u8 } from './layout.ts';
import type { RecordOf } from './layout.ts';

export const SglType = {
  dataBlock: 0x0,
  bitBucket: 0x1,
  segment: 0x2,
  lastSegment: 0x3,
  keyedDataBlock: 0x4,
  transportDataBlock: 0x5,
} as const;

/** Low nibble of the identifier byte. */
export const SglSubtype = {
  address: 0x0,
  offset: 0x1,
  transport: 0xa,
  /** Keyed only: the controller may answer with SEND with Invalidate of the key. */
  invalidateKey: 0xf,
} as const;

/** Whole identifier byte: type in the high nibble, subtype in the low one. */
export const SglIdentifier = {
  inCapsule: 0x01,
  keyed: 0x40,
  keyedInvalidate: 0x4f,
  transport: 0x5a,
} as const;

const identifier = u8(15);

export const DataBlockDescriptor = layout(16, {
  address: u64(0),
  length: u32(8),
  subtype: bits(identifier, 0, 4),
  type: bits(identifier, 4, 4),
});
export type DataBlockDescriptor = RecordOf<typeof DataBlockDescriptor>;

export const KeyedDataBlockDescriptor = layout(16, {
  address: u64(0),
  length: u24(8),
  key: u32(11),
  subtype: bits(identifier, 0, 4),
  type: bits(identifier, 4, 4),
});
export type KeyedDataBlockDescriptor = RecordOf<typeof KeyedDataBlockDescriptor>;

export const KEYED_LENGTH_MAX = 0xff_ffff;

/** Bytes that a command's first SGL descriptor names; 0 for a type that names none. */
export function sglLength(descriptor: Uint8Array): number {
  const { type } = DataBlockDescriptor.decode(descriptor);
  if (type === SglType.keyedDataBlock) return KeyedDataBlockDescriptor.decode(descriptor).length;
  if (type === SglType.dataBlock || type === SglType.transportDataBlock) {
    return DataBlockDescriptor.decode(descriptor).length;
  }
  return 0;
}
