/**
 * NVMe over Fabrics: Connect, Property, Disconnect (NVMe Base 2.1 section 6), and the private data of RDMA connection
 * management (NVMe RDMA Transport 1.1 section 3.3). Bytes only.
 */
import { bits, bytes, flag, layout, nulPadded, u16, u32, u64, u8 } from './layout.ts';
import type { RecordOf } from './layout.ts';
import { SQE_BYTES } from './sqe.ts';

export const DISCOVERY_NQN = 'nqn.2014-08.org.nvmexpress.discovery';
export const NVME_RDMA_PORT = 4420;

/** CNTLID in Connect data: let the controller choose (dynamic model). */
export const CNTLID_DYNAMIC = 0xffff;
/** Static model: any controller. Not offered here. */
export const CNTLID_STATIC_ANY = 0xfffe;
export const CNTLID_MAX = 0xffef;

/** Entries of the admin queue that every controller must take (0-based 31 in SQSIZE). */
export const ADMIN_QUEUE_ENTRIES_MIN = 32;

const flags = u8(1);
const header = {
  opcode: u8(0),
  fuse: bits(flags, 0, 2),
  psdt: bits(flags, 6, 2),
  cid: u16(2),
  fctype: u8(4),
};

/** What every Fabrics command shares. */
export const FabricsCommand = layout(SQE_BYTES, { ...header, sgl1: bytes(24, 16) });
export type FabricsCommand = RecordOf<typeof FabricsCommand>;

const cattr = u8(46);

export const ConnectCommand = layout(SQE_BYTES, {
  ...header,
  sgl1: bytes(24, 16),
  recfmt: u16(40),
  qid: u16(42),
  /** Submission queue entries, 0-based. */
  sqsize: u16(44),
  priority: bits(cattr, 0, 2),
  disableSqFlowControl: flag(cattr, 2),
  cattrReserved: bits(cattr, 3, 5),
  /** Keep alive timeout in milliseconds; 0: none. */
  kato: u32(48),
});
export type ConnectCommand = RecordOf<typeof ConnectCommand>;

export const CONNECT_DATA_BYTES = 1024;

export const ConnectData = layout(CONNECT_DATA_BYTES, {
  /** UUID in RFC 9562 byte order. */
  hostid: bytes(0, 16),
  cntlid: u16(16),
  subnqn: nulPadded(256, 256),
  hostnqn: nulPadded(512, 256),
});
export type ConnectData = RecordOf<typeof ConnectData>;

const connectDword0 = u32(0);
const connectInvalid = u32(0);

/** Dwords 0 and 1 of a successful Connect response. */
export const ConnectResult = layout(8, {
  cntlid: bits(connectDword0, 0, 16),
  /** Authentication and key generation required. */
  ascr: flag(connectDword0, 18),
  atr: flag(connectDword0, 17),
});
export type ConnectResult = RecordOf<typeof ConnectResult>;

/** Dwords 0 and 1 of a Connect response with Connect Invalid Parameters. */
export const ConnectInvalidResult = layout(8, {
  /** Offset of the invalid parameter in bytes. */
  ipo: bits(connectInvalid, 0, 16),
  /** Where the offset counts from: false the SQE, true the Connect data. */
  inData: flag(connectInvalid, 16),
});
export type ConnectInvalidResult = RecordOf<typeof ConnectInvalidResult>;

const attrib = u8(40);

export const PropertyGetCommand = layout(SQE_BYTES, {
  ...header,
  sgl1: bytes(24, 16),
  /** 0: four bytes, 1: eight bytes. */
  size: bits(attrib, 0, 3),
  attribReserved: bits(attrib, 3, 5),
  ofst: u32(44),
});
export type PropertyGetCommand = RecordOf<typeof PropertyGetCommand>;

export const PropertySetCommand = layout(SQE_BYTES, {
  ...header,
  sgl1: bytes(24, 16),
  size: bits(attrib, 0, 3),
  attribReserved: bits(attrib, 3, 5),
  ofst: u32(44),
  value: u64(48),
});
export type PropertySetCommand = RecordOf<typeof PropertySetCommand>;

export const DisconnectCommand = layout(SQE_BYTES, {
  ...header,
  sgl1: bytes(24, 16),
  recfmt: u16(40),
});
export type DisconnectCommand = RecordOf<typeof DisconnectCommand>;

/** Bytes of NVMe private data in CM requests and replies, after the RDMA-CM header. */
export const CM_PRIVATE_DATA_BYTES = 32;

export const CmRequestPrivateData = layout(CM_PRIVATE_DATA_BYTES, {
  recfmt: u16(0),
  qid: u16(2),
  /** Host receive queue entries, 1-based. */
  hrqsize: u16(4),
  /** Host submission queue entries, 0-based. */
  hsqsize: u16(6),
  /** The controller for an I/O queue; 0 for the admin queue, and from hosts before Linux 6.12. */
  cntlid: u16(8),
});
export type CmRequestPrivateData = RecordOf<typeof CmRequestPrivateData>;

export const CmReplyPrivateData = layout(CM_PRIVATE_DATA_BYTES, {
  recfmt: u16(0),
  /** Controller receive queue entries, 1-based. */
  crqsize: u16(2),
});
export type CmReplyPrivateData = RecordOf<typeof CmReplyPrivateData>;

export const CM_REJECT_BYTES = 4;

export const CmRejectPrivateData = layout(CM_REJECT_BYTES, {
  recfmt: u16(0),
  sts: u16(2),
});
export type CmRejectPrivateData = RecordOf<typeof CmRejectPrivateData>;

/** CM REJ reason under which the NVMe status below is carried. */
export const CM_REJ_CONSUMER = 28;

export const CmRejectStatus = {
  invalidPrivateDataLength: 1,
  invalidRecordFormat: 2,
  invalidQueueId: 3,
  invalidHsqsize: 4,
  invalidHrqsize: 5,
  noResources: 6,
  invalidIrd: 7,
  invalidOrd: 8,
  invalidCntlid: 9,
} as const;
export type CmRejectStatus = (typeof CmRejectStatus)[keyof typeof CmRejectStatus];

export const CM_REJECT_TEXT: Readonly<Record<number, string>> = {
  1: 'invalid private data length',
  2: 'invalid record format',
  3: 'invalid queue id',
  4: 'invalid host submission queue size',
  5: 'invalid host receive queue size',
  6: 'no resources',
  7: 'invalid inbound RDMA read depth',
  8: 'invalid outbound RDMA read depth',
  9: 'invalid controller id',
};
