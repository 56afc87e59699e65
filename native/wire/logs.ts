/**
 * Log pages (NVMe Base 2.1 section 5.1.12; the discovery log is of the Fabrics part). Bytes only.
 */
import {
  bits,
  flag,
  layout,
  nulPadded,
  numbers,
  records,
  u128,
  u16,
  u32,
  u64,
  u8,
} from './layout.ts';
import type { RecordOf } from './layout.ts';

export const LogId = {
  supportedPages: 0x00,
  errorInformation: 0x01,
  smart: 0x02,
  firmwareSlot: 0x03,
  changedNamespaces: 0x04,
  commandsSupported: 0x05,
  ana: 0x0c,
  featureIdentifiers: 0x12,
  crossControllerReset: 0x1e,
  discovery: 0x70,
} as const;

/** One u32 per log page: bit 0 supported, bit 1 index offset supported. */
export const SupportedPagesLog = layout(1024, { pages: numbers(0, 256, u32) });
export const PAGE_SUPPORTED = 1;

/** One u32 per feature: bit 0 supported, bit 1 user data content changes, bits 31:20 scope. */
export const FeatureIdentifiersLog = layout(1024, { features: numbers(0, 256, u32) });
export const FEATURE_SUPPORTED = 1;
export const FEATURE_SCOPE_CONTROLLER = 1 << 21;

const errorStatus = u16(12);
const parameter = u16(14);

export const ErrorLogEntry = layout(64, {
  count: u64(0),
  sqid: u16(8),
  cid: u16(10),
  phase: flag(errorStatus, 0),
  /** Status field as the door carries it, without phase bit. */
  status: bits(errorStatus, 1, 15),
  /** Byte and bit of the parameter in the SQE; FFFFh as a whole: none. */
  ploc: parameter,
  lba: u64(16),
  nsid: u32(24),
  vs: u8(28),
  trtype: u8(29),
  csi: u8(30),
  opcode: u8(31),
  csinfo: u64(32),
  trtypeInfo: u16(40),
});
export type ErrorLogEntry = RecordOf<typeof ErrorLogEntry>;
export const PARAMETER_NONE = 0xffff;

export const SmartLog = layout(512, {
  criticalWarning: u8(0),
  /** Kelvin. */
  temperature: u16(1),
  availableSpare: u8(3),
  availableSpareThreshold: u8(4),
  percentageUsed: u8(5),
  /** Units of 1000 × 512 bytes, rounded up. */
  dataUnitsRead: u128(32),
  dataUnitsWritten: u128(48),
  hostReadCommands: u128(64),
  hostWriteCommands: u128(80),
  controllerBusyMinutes: u128(96),
  powerCycles: u128(112),
  powerOnHours: u128(128),
  unsafeShutdowns: u128(144),
  mediaErrors: u128(160),
  errorLogEntries: u128(176),
});
export type SmartLog = RecordOf<typeof SmartLog>;

export const FirmwareSlotLog = layout(512, { afi: u8(0), frs1: nulPadded(8, 8) });

export const CHANGED_NAMESPACES_MAX = 1024;
/** First entry FFFFFFFFh: more changes than the list holds. */
export const ChangedNamespacesLog = layout(4096, {
  nsids: numbers(0, CHANGED_NAMESPACES_MAX, u32),
});

export const CommandsSupportedLog = layout(4096, {
  admin: numbers(0, 256, u32),
  io: numbers(1024, 256, u32),
});

/** Bits of a commands-supported entry. */
export const CommandEffect = {
  supported: 1 << 0,
  logicalBlockContent: 1 << 1,
  namespaceCapability: 1 << 2,
  namespaceInventory: 1 << 3,
  controllerCapability: 1 << 4,
} as const;

const ccrf = u8(7);

/** One Cross-Controller Reset that was not over when its command was answered (NVMe Base 2.3 section 5.2.12.3.1). */
export const CrossControllerResetEntry = layout(8, {
  /** The controller to be reset, and which life of it. */
  icid: u16(0),
  ciu: u8(2),
  /** Another controller that could be asked; FFFFh: none is named. */
  acid: u16(4),
  ccrs: u8(6),
  validated: flag(ccrf, 0),
  initiated: flag(ccrf, 1),
});
export type CrossControllerResetEntry = RecordOf<typeof CrossControllerResetEntry>;

export const CrossControllerResetStatus = { inProgress: 0, success: 1, failure: 2 } as const;
export const ALTERNATE_CONTROLLER_NONE = 0xffff;
export const CROSS_CONTROLLER_RESETS_MAX = 511;

export const CrossControllerResetLog = layout(4096, {
  /** Entries that follow. */
  ne: u16(0),
  entries: records(8, CROSS_CONTROLLER_RESETS_MAX, CrossControllerResetEntry),
});

/** Bit of LSP: those that are over leave the page with this reading. */
export const CROSS_CONTROLLER_RESET_REMOVE_COMPLETED = 1;

export const DISCOVERY_ENTRY_BYTES = 1024;

export const DiscoveryLogHeader = layout(1024, {
  genctr: u64(0),
  numrec: u64(8),
  recfmt: u16(16),
});
export type DiscoveryLogHeader = RecordOf<typeof DiscoveryLogHeader>;

const treq = u8(3);
const eflags = u16(10);

export const DiscoveryLogEntry = layout(DISCOVERY_ENTRY_BYTES, {
  trtype: u8(0),
  adrfam: u8(1),
  subtype: u8(2),
  /** 0 not specified, 1 required, 2 not required. */
  treqSecureChannel: bits(treq, 0, 2),
  treqDisableSqFlowControl: flag(treq, 2),
  portid: u16(4),
  cntlid: u16(6),
  /** Admin submission queue entries. */
  asqsz: u16(8),
  eflagsDuplicateInfo: flag(eflags, 0),
  eflagsExplicitPersistent: flag(eflags, 1),
  trsvcid: nulPadded(32, 32),
  subnqn: nulPadded(256, 256),
  traddr: nulPadded(512, 256),
  tsasRdmaQptype: u8(768),
  tsasRdmaPrtype: u8(769),
  tsasRdmaCms: u8(770),
  tsasRdmaPkey: u16(776),
});
export type DiscoveryLogEntry = RecordOf<typeof DiscoveryLogEntry>;

export const TransportType = { rdma: 1, fibreChannel: 2, tcp: 3, loop: 254 } as const;
export const AddressFamily = { ipv4: 1, ipv6: 2, infiniband: 3, fibreChannel: 4 } as const;
export const DiscoverySubtype = { referral: 1, nvm: 2, currentDiscovery: 3 } as const;
export const RdmaQpType = { connected: 1, datagram: 2 } as const;
export const RdmaProvider = { none: 1, infiniband: 2, roce: 3, rocev2: 4, iwarp: 5 } as const;
export const RdmaCms = { rdmaCm: 1 } as const;
