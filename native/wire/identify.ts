/**
 * Identify data structures (NVMe Base 2.1 section 5.1.13, NVM Command Set 1.1 section 4.1.5), 4096 bytes each. Bytes only.
 */
import {
  bits,
  bytes,
  flag,
  layout,
  nulPadded,
  numbers,
  record,
  records,
  spacePadded,
  u128,
  u16,
  u32,
  u64,
  u8,
  viewOf,
} from './layout.ts';
import type { RecordOf } from './layout.ts';

export const IDENTIFY_BYTES = 4096;

export const Cns = {
  namespace: 0x00,
  controller: 0x01,
  activeNamespaces: 0x02,
  namespaceDescriptors: 0x03,
  commandSetNamespace: 0x05,
  commandSetController: 0x06,
  commandSetActiveNamespaces: 0x07,
  independentNamespace: 0x08,
  commandSets: 0x1c,
} as const;

/** Command set identifiers. */
export const Csi = { nvm: 0x00, keyValue: 0x01, zoned: 0x02 } as const;

export const ControllerType = { io: 1, discovery: 2, administrative: 3 } as const;

const cmic = u8(76);
const oaes = u32(92);
const ctratt = u32(96);
const lpa = u8(261);
const vwc = u8(525);
const oncs = u16(520);
const sgls = u32(536);
const fcatt = u8(1802);
const ofcs = u16(1804);

export const PowerState = layout(32, {
  mp: u16(0),
  mxps: flag(u8(3), 0),
  nops: flag(u8(3), 1),
  enlat: u32(4),
  exlat: u32(8),
  rrt: u8(12),
  rrl: u8(13),
  rwt: u8(14),
  rwl: u8(15),
  idlp: u16(16),
  ips: u8(18),
  actp: u16(20),
  apws: u8(22),
});

export const IdentifyController = layout(IDENTIFY_BYTES, {
  vid: u16(0),
  ssvid: u16(2),
  sn: spacePadded(4, 20),
  mn: spacePadded(24, 40),
  fr: spacePadded(64, 8),
  rab: u8(72),
  ieee: bytes(73, 3),
  cmicMultiPort: flag(cmic, 0),
  cmicMultiController: flag(cmic, 1),
  cmicSriov: flag(cmic, 2),
  cmicAna: flag(cmic, 3),
  /** Largest transfer: 2^n pages of 4 KiB (CAP.MPSMIN 0); 0: no limit. */
  mdts: u8(77),
  cntlid: u16(78),
  ver: u32(80),
  rtd3r: u32(84),
  rtd3e: u32(88),
  oaesNamespaceAttribute: flag(oaes, 8),
  oaesFirmwareActivation: flag(oaes, 9),
  oaesAna: flag(oaes, 11),
  oaesCrossControllerReset: flag(oaes, 20),
  oaesDiscovery: flag(oaes, 31),
  ctrattHostId128: flag(ctratt, 0),
  ctrattTbkas: flag(ctratt, 6),
  ctrattElbas: flag(ctratt, 15),
  rrls: u16(100),
  cntrltype: u8(111),
  fguid: bytes(112, 16),
  crdt1: u16(128),
  crdt2: u16(130),
  crdt3: u16(132),
  /** Controller Instance Uniquifier: another one each time the controller becomes ready; 0: not told. */
  ciu: u8(135),
  /** Controller Instance Random Number: names one life of the controller together with CNTLID and CIU. */
  cirn: u64(136),
  nvmsr: u8(253),
  vwci: u8(254),
  mec: u8(255),
  oacs: u16(256),
  /** Abort command limit, 0-based. */
  acl: u8(258),
  /** Outstanding Asynchronous Event Requests, 0-based. */
  aerl: u8(259),
  frmw: u8(260),
  lpaSmartPerNamespace: flag(lpa, 0),
  lpaCommandsSupported: flag(lpa, 1),
  lpaExtendedData: flag(lpa, 2),
  lpaTelemetry: flag(lpa, 3),
  lpaPersistentEvent: flag(lpa, 4),
  lpaSupportedPages: flag(lpa, 5),
  /** Error log entries, 0-based. */
  elpe: u8(262),
  npss: u8(263),
  avscc: u8(264),
  apsta: u8(265),
  wctemp: u16(266),
  cctemp: u16(268),
  mtfa: u16(270),
  tnvmcap: u128(280),
  unvmcap: u128(296),
  rpmbs: u32(312),
  edstt: u16(316),
  dsto: u8(318),
  fwug: u8(319),
  /** Keep alive granularity in 100 ms units; 0: not supported. */
  kas: u16(320),
  hctma: u16(322),
  mntmt: u16(324),
  mxtmt: u16(326),
  sanicap: u32(328),
  hmminds: u32(332),
  hmmaxd: u16(336),
  nsetidmax: u16(338),
  endgidmax: u16(340),
  anatt: u8(342),
  anacap: u8(343),
  anagrpmax: u32(344),
  nanagrpid: u32(348),
  pels: u32(352),
  domainid: u16(356),
  /** Command Quiesce Time, ms: until no command does anything any more, once the keep alive timer has expired; 0: not told. */
  cqt: u16(386),
  sqes: u8(512),
  cqes: u8(513),
  maxcmd: u16(514),
  nn: u32(516),
  oncsCompare: flag(oncs, 0),
  oncsWriteUncorrectable: flag(oncs, 1),
  oncsDatasetManagement: flag(oncs, 2),
  oncsWriteZeroes: flag(oncs, 3),
  oncsSaveSelect: flag(oncs, 4),
  oncsReservations: flag(oncs, 5),
  oncsTimestamp: flag(oncs, 6),
  oncsVerify: flag(oncs, 7),
  oncsCopy: flag(oncs, 8),
  fuses: u16(522),
  fna: u8(524),
  vwcPresent: flag(vwc, 0),
  /** Flush with NSID FFFFFFFFh: 0 not said, 2 not supported, 3 supported. */
  vwcFlushAll: bits(vwc, 1, 2),
  awun: u16(526),
  awupf: u16(528),
  icsvscc: u8(530),
  nwpc: u8(531),
  acwu: u16(532),
  cdfs: u16(534),
  /** 1: SGLs without alignment demands, 2: dword aligned. */
  sglsSupport: bits(sgls, 0, 2),
  sglsKeyed: flag(sgls, 2),
  sglsBitBucket: flag(sgls, 16),
  sglsInCapsuleOffset: flag(sgls, 20),
  sglsTransport: flag(sgls, 21),
  mnan: u32(540),
  subnqn: nulPadded(768, 256),
  /** Command and response capsule sizes in 16-byte units. */
  ioccsz: u32(1792),
  iorcsz: u32(1796),
  icdoff: u16(1800),
  /** False: dynamic controller model. */
  fcattStatic: flag(fcatt, 0),
  msdbd: u8(1803),
  ofcsDisconnect: flag(ofcs, 0),
  dctype: u8(1806),
  /** Cross-Controller Resets that may be in progress at once; 0: the command is not there. */
  ccrl: u8(1807),
  powerStates: records(2048, 32, PowerState),
});
export type IdentifyController = RecordOf<typeof IdentifyController>;

export const LbaFormat = layout(4, { ms: u16(0), lbads: u8(2), rp: bits(u8(3), 0, 2) });
export type LbaFormat = RecordOf<typeof LbaFormat>;

const nsfeat = u8(24);
const flbas = u8(26);
const dlfeat = u8(33);
const nmic = u8(30);
const nsattr = u8(99);

export const IdentifyNamespace = layout(IDENTIFY_BYTES, {
  nsze: u64(0),
  ncap: u64(8),
  nuse: u64(16),
  nsfeatThinProvisioning: flag(nsfeat, 0),
  nsfeatAtomics: flag(nsfeat, 1),
  nsfeatDeallocatedError: flag(nsfeat, 2),
  nsfeatUidReuse: flag(nsfeat, 3),
  nsfeatOptimalSizes: bits(nsfeat, 4, 2),
  /** LBA formats, 0-based. */
  nlbaf: u8(25),
  flbasFormat: bits(flbas, 0, 4),
  flbasExtended: flag(flbas, 4),
  mc: u8(27),
  dpc: u8(28),
  dps: u8(29),
  nmicShared: flag(nmic, 0),
  rescap: u8(31),
  fpi: u8(32),
  /** What a deallocated block reads: 1 zeros, 2 ones. */
  dlfeatRead: bits(dlfeat, 0, 3),
  dlfeatWriteZeroesDeallocate: flag(dlfeat, 3),
  nawun: u16(34),
  nawupf: u16(36),
  nacwu: u16(38),
  nabsn: u16(40),
  nabo: u16(42),
  nabspf: u16(44),
  noiob: u16(46),
  nvmcap: u128(48),
  npwg: u16(64),
  npwa: u16(66),
  npdg: u16(68),
  npda: u16(70),
  nows: u16(72),
  mssrl: u16(74),
  mcl: u32(76),
  msrc: u8(80),
  anagrpid: u32(92),
  nsattrWriteProtected: flag(nsattr, 0),
  nvmsetid: u16(100),
  endgid: u16(102),
  nguid: bytes(104, 16),
  eui64: bytes(120, 8),
  lbaf: records(128, 64, LbaFormat),
});
export type IdentifyNamespace = RecordOf<typeof IdentifyNamespace>;

const independentNmic = u8(1);
const independentNsattr = u8(8);
const nstat = u8(14);

export const IdentifyIndependentNamespace = layout(IDENTIFY_BYTES, {
  nsfeat: u8(0),
  nmicShared: flag(independentNmic, 0),
  rescap: u8(2),
  fpi: u8(3),
  anagrpid: u32(4),
  nsattrWriteProtected: flag(independentNsattr, 0),
  nvmsetid: u16(10),
  endgid: u16(12),
  ready: flag(nstat, 0),
});
export type IdentifyIndependentNamespace = RecordOf<typeof IdentifyIndependentNamespace>;

export const IdentifyNvmController = layout(IDENTIFY_BYTES, {
  vsl: u8(0),
  wzsl: u8(1),
  wusl: u8(2),
  dmrl: u8(3),
  dmrsl: u32(4),
  dmsl: u64(8),
});
export type IdentifyNvmController = RecordOf<typeof IdentifyNvmController>;

export const IdentifyNvmNamespace = layout(IDENTIFY_BYTES, {
  lbstm: u64(0),
  pic: u8(8),
});

export const NAMESPACE_LIST_ENTRIES = 1024;
export const NamespaceList = layout(IDENTIFY_BYTES, {
  nsids: numbers(0, NAMESPACE_LIST_ENTRIES, u32),
});

/** The list up to its first zero. */
export function decodeNamespaceList(page: Uint8Array): number[] {
  const { nsids } = NamespaceList.decode(page);
  const end = nsids.indexOf(0);
  return end < 0 ? nsids : nsids.slice(0, end);
}

/** Identify CNS 1Ch: combinations of command sets as bit vectors; entry 0 with only NVM is 1. */
export const CommandSetList = layout(IDENTIFY_BYTES, {
  first: record(0, layout(8, { vector: u64(0) })),
});

export const DescriptorType = { eui64: 1, nguid: 2, uuid: 3, csi: 4 } as const;

const DescriptorHeader = layout(4, { nidt: u8(0), nidl: u8(1) });

const DESCRIPTOR_BYTES: ReadonlyMap<number, number> = new Map([
  [DescriptorType.eui64, 8],
  [DescriptorType.nguid, 16],
  [DescriptorType.uuid, 16],
  [DescriptorType.csi, 1],
]);

export interface NamespaceDescriptor {
  readonly type: number;
  readonly value: Uint8Array;
}

export function encodeNamespaceDescriptors(list: readonly NamespaceDescriptor[]): Uint8Array {
  const page = new Uint8Array(IDENTIFY_BYTES);
  let at = 0;
  for (const { type, value } of list) {
    DescriptorHeader.write(page, at, { nidt: type, nidl: value.length });
    page.set(value, at + DescriptorHeader.size);
    at += DescriptorHeader.size + value.length;
  }
  return page;
}

/** Ends at length 0, at the end of the page, or at the first descriptor whose length is wrong; skips unknown types. */
export function decodeNamespaceDescriptors(page: Uint8Array): NamespaceDescriptor[] {
  const list: NamespaceDescriptor[] = [];
  let at = 0;
  while (at + DescriptorHeader.size <= page.length) {
    const { nidt, nidl } = DescriptorHeader.read(viewOf(page), at);
    const end = at + DescriptorHeader.size + nidl;
    const expected = DESCRIPTOR_BYTES.get(nidt);
    if (nidl === 0 || end > page.length || (expected ?? nidl) !== nidl) break;
    if (expected) list.push({ type: nidt, value: page.slice(at + DescriptorHeader.size, end) });
    at = end;
  }
  return list;
}
