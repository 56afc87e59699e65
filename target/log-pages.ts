/**
 * Get Log Page (NVMe Base 2.1 section 5.1.12): one row per page. The supported-pages page is derived from the rows, the
 * commands-supported page from the command tables, the feature page from the feature table.
 */
import {
  CROSS_CONTROLLER_RESET_REMOVE_COMPLETED,
  CommandEffect,
  CommandsSupportedLog,
  FEATURE_SCOPE_CONTROLLER,
  FEATURE_SUPPORTED,
  FeatureIdentifiersLog,
  FirmwareSlotLog,
  LogId,
  PAGE_SUPPORTED,
  SmartLog,
  SupportedPagesLog,
} from '../native/wire/logs.ts';
import { Csi } from '../native/wire/identify.ts';
import { GetLogPageCommand, NSID_ALL } from '../native/wire/sqe.ts';
import { Status } from '../native/wire/status.ts';
import { ANA_GROUPS_ONLY, AnaGroupDescriptor, AnaLogHeader } from '../native/wire/ana.ts';
import { ADMIN_COMMANDS, IO_COMMANDS } from './commands.ts';
import { ANA_GROUP_MAX } from './ana.ts';
import { NSID_MAX } from './config.ts';
import { MAX_TRANSFER_BYTES } from './context.ts';
import type { Controller } from './controller.ts';
import { featuresOf } from './features.ts';
import { FIRMWARE_REVISION } from './identify.ts';
import { fail, isFailure, reply } from './outcome.ts';
import type { Failure } from './outcome.ts';
import type { Prepared, Request } from './request.ts';

type Parsed = ReturnType<typeof GetLogPageCommand.decode>;

interface LogPageRow {
  readonly lid: number;
  readonly name: string;
  readonly io: boolean;
  readonly discovery: boolean;
  /** CSI must be NVM. */
  readonly csi: boolean;
  page(controller: Controller, command: Parsed): Uint8Array;
  /** The page was read with this log specific parameter. */
  taken?(controller: Controller, lsp: number): void;
  /** How long the page can be, where hosts read that much in pieces: offsets up to there are none beyond its end. */
  readonly bytesMax?: number;
  /** The page was read without RAE. */
  cleared?(controller: Controller): void;
}

const { offsets } = GetLogPageCommand;
/** Byte offsets in the SQE. */
const LID_BYTE = 40;
const NUMD_BYTE = 42;
const OT_BYTE = 58;
const CSI_BYTE = 59;

const DWORD = 4;
/** What hosts compute from NANAGRPID and MNAN; nvme-cli reads it in pieces of 4 KiB. */
const ANA_LOG_BYTES_MAX =
  AnaLogHeader.size + ANA_GROUP_MAX * AnaGroupDescriptor.size + NSID_MAX * DWORD;
const MS_PER_HOUR = 3_600_000;
const SPARE_PERCENT = 100;

function supportedPages(controller: Controller): Uint8Array {
  const pages = new Array<number>(256).fill(0);
  for (const { lid } of pagesOf(controller)) pages[lid] = PAGE_SUPPORTED;
  return SupportedPagesLog.encode({ pages });
}

/**
 * What is not known stays 0. Data units, host commands and busy time are not counted by controller, only for the whole
 * process (`Target.counters`); of data units 0 means "not reported" (section 5.1.12.1.3). Temperature, wear, power cycles
 * and unsafe shutdowns are those of a device, which this is not.
 */
function smart({ context, createdAtMs, errorLog }: Controller): Uint8Array {
  return SmartLog.encode({
    availableSpare: SPARE_PERCENT,
    availableSpareThreshold: 0,
    powerOnHours: BigInt(Math.floor((context.clock.now() - createdAtMs) / MS_PER_HOUR)),
    errorLogEntries: errorLog.count,
  });
}

function commandsSupported({ discovery }: Controller): Uint8Array {
  const admin = new Array<number>(256).fill(0);
  const io = new Array<number>(256).fill(0);
  for (const row of ADMIN_COMMANDS) {
    if (!discovery || row.discovery) admin[row.code] = CommandEffect.supported | row.effects;
  }
  for (const row of discovery ? [] : IO_COMMANDS) {
    io[row.code] = CommandEffect.supported | row.effects;
  }
  return CommandsSupportedLog.encode({ admin, io });
}

/** Pages that were read in pieces, or before a change, may be old: their reader hears of it again. */
function anaRead(controller: Controller): void {
  const { subsystem, arrival, anaLog } = controller;
  if (anaLog.stale(subsystem.ana.states.changeCount(arrival.endpoint))) controller.anaChanged();
  else anaLog.current();
}

function featureIdentifiers(controller: Controller): Uint8Array {
  const features = new Array<number>(256).fill(0);
  for (const { fid } of featuresOf(controller)) {
    features[fid] = FEATURE_SUPPORTED | FEATURE_SCOPE_CONTROLLER;
  }
  return FeatureIdentifiersLog.encode({ features });
}

const both = { io: true, discovery: true, csi: false } as const;
const ioOnly = { io: true, discovery: false, csi: false } as const;

export const LOG_PAGES: readonly LogPageRow[] = [
  { ...both, lid: LogId.supportedPages, name: 'Supported Log Pages', page: supportedPages },
  {
    ...both,
    lid: LogId.errorInformation,
    name: 'Error Information',
    page: ({ errorLog }) => errorLog.page(),
  },
  { ...ioOnly, lid: LogId.smart, name: 'SMART / Health', page: smart },
  {
    ...ioOnly,
    lid: LogId.firmwareSlot,
    name: 'Firmware Slot',
    page: () => FirmwareSlotLog.encode({ afi: 1, frs1: FIRMWARE_REVISION }),
  },
  {
    ...ioOnly,
    lid: LogId.changedNamespaces,
    name: 'Changed Attached Namespace List',
    page: ({ changedNamespaces }) => changedNamespaces.page(),
    cleared: ({ changedNamespaces }) => {
      changedNamespaces.clear();
    },
  },
  {
    ...both,
    lid: LogId.commandsSupported,
    name: 'Commands Supported and Effects',
    csi: true,
    page: commandsSupported,
  },
  {
    ...ioOnly,
    lid: LogId.ana,
    name: 'Asymmetric Namespace Access',
    bytesMax: ANA_LOG_BYTES_MAX,
    page: ({ anaLog }, { lsp, lpo }) => anaLog.read((lsp & ANA_GROUPS_ONLY) !== 0, lpo === 0n),
    cleared: anaRead,
  },
  {
    ...both,
    lid: LogId.featureIdentifiers,
    name: 'Feature Identifiers Supported and Effects',
    page: featureIdentifiers,
  },
  {
    ...ioOnly,
    lid: LogId.crossControllerReset,
    name: 'Cross-Controller Reset',
    page: ({ resets }) => resets.page(),
    taken: ({ resets }, lsp) => {
      if ((lsp & CROSS_CONTROLLER_RESET_REMOVE_COMPLETED) !== 0) resets.removeCompleted();
    },
  },
  {
    lid: LogId.discovery,
    name: 'Discovery',
    io: false,
    discovery: true,
    csi: false,
    page: ({ context, hostNqn, arrival }) => context.discovery.page(hostNqn, arrival),
  },
];

function pagesOf({ discovery }: Controller): LogPageRow[] {
  return LOG_PAGES.filter((row) => (discovery ? row.discovery : row.io));
}

function check(controller: Controller, command: Parsed, length: number): LogPageRow | Failure {
  const row = pagesOf(controller).find(({ lid }) => lid === command.lid);
  if (!row) {
    return fail(Status.invalidLogPage, LID_BYTE, `no log page ${command.lid.toString(16)}h`);
  }
  // Every page is the controller's or the subsystem's.
  if (command.nsid !== 0 && command.nsid !== NSID_ALL) {
    return fail(Status.invalidField, offsets.nsid, 'the page is not of a namespace');
  }
  if (length > MAX_TRANSFER_BYTES) {
    return fail(Status.invalidField, NUMD_BYTE, `${length} bytes are more than MDTS allows`);
  }
  if (command.ot) return fail(Status.invalidField, OT_BYTE, 'offsets are in bytes here');
  if (command.lpo % BigInt(DWORD) !== 0n) {
    return fail(Status.invalidField, offsets.lpo, `offset ${command.lpo} is not of a dword`);
  }
  if (row.csi && command.csi !== Csi.nvm) {
    return fail(Status.invalidField, CSI_BYTE, `command set ${command.csi} is not here`);
  }
  return row;
}

export function prepareGetLogPage({ controller, sqe }: Request): Prepared | Failure {
  const command = GetLogPageCommand.decode(sqe);
  const length = (command.numdu * 0x10000 + command.numdl + 1) * DWORD;
  const row = check(controller, command, length);
  if (isFailure(row)) return row;
  return {
    length,
    run: () => {
      const page = row.page(controller, command);
      const bytes = Math.max(page.length, row.bytesMax ?? 0);
      if (command.lpo > BigInt(bytes)) {
        return fail(Status.invalidField, offsets.lpo, `the page has ${bytes} bytes`);
      }
      // Beyond the end of the page: zeros.
      const data = new Uint8Array(length);
      const start = Number(command.lpo);
      data.set(page.subarray(start, start + length));
      row.taken?.(controller, command.lsp);
      if (!command.rae) {
        controller.asyncEvents.logRead(row.lid);
        row.cleared?.(controller);
      }
      return reply(0n, data);
    },
  };
}
