/**
 * Identify (NVMe Base 2.1 section 5.1.13): one row per CNS value, and what each structure says. The values meet what Linux demands of
 * a fabrics controller.
 */
import { AnaCapability } from '../native/wire/ana.ts';
import {
  Cns,
  CommandSetList,
  ControllerType,
  Csi,
  DescriptorType,
  IDENTIFY_BYTES,
  IdentifyController,
  IdentifyIndependentNamespace,
  IdentifyNamespace,
  NAMESPACE_LIST_ENTRIES,
  NamespaceList,
  encodeNamespaceDescriptors,
} from '../native/wire/identify.ts';
import type { RecordOf } from '../native/wire/layout.ts';
import { viewOf } from '../native/wire/layout.ts';
import { IdentifyCommand, NSID_ALL, SQE_BYTES } from '../native/wire/sqe.ts';
import { CQE_BYTES } from '../native/wire/cqe.ts';
import { Status } from '../native/wire/status.ts';
import { AER_LIMIT } from './aer.ts';
import { ANATT_SECONDS, ANA_GROUP_MAX, ANA_STATES } from './ana.ts';
import { ABORT_LIMIT } from './abort.ts';
import { NSID_MAX } from './config.ts';
import { MAX_TRANSFER_BYTES } from './context.ts';
import type { Controller } from './controller.ts';
import { CROSS_CONTROLLER_RESET_LIMIT } from './cross-controller-reset.ts';
import { ERROR_LOG_ENTRIES } from './error-log.ts';
import { KEEP_ALIVE_GRANULARITY } from './keep-alive.ts';
import type { Namespace } from './namespace.ts';
import { fail, isFailure, reply } from './outcome.ts';
import type { Failure } from './outcome.ts';
import { VERSION } from './properties.ts';
import type { Prepared, Request } from './request.ts';

type Parsed = RecordOf<typeof IdentifyCommand>;
type Page = Uint8Array;

interface CnsRow {
  readonly cns: number;
  readonly name: string;
  readonly discovery: boolean;
  /** Whether CSI is looked at: only the NVM command set is here. */
  readonly csi: boolean;
  build(controller: Controller, command: Parsed): Page | Failure;
}

const { offsets } = IdentifyCommand;
/** CNS in CDW10, CSI in the top byte of CDW11. */
const CNS_BYTE = 40;
const CSI_BYTE = 47;

const PAGE_BYTES = 4096;
/** Capsules are counted in 16 bytes. */
const CAPSULE_UNIT = 16;

/** All five states; a namespace may move to another group. */
const ANACAP =
  AnaCapability.optimized |
  AnaCapability.nonOptimized |
  AnaCapability.inaccessible |
  AnaCapability.persistentLoss |
  AnaCapability.change;

/** Package version as eight characters. */
export const FIRMWARE_REVISION = '0.1.0';

function identifyController(controller: Controller): Page {
  const { subsystem, port, discovery } = controller;
  const values: Partial<RecordOf<typeof IdentifyController>> = {
    sn: subsystem.serial,
    mn: subsystem.model,
    fr: FIRMWARE_REVISION,
    cmicMultiPort: !discovery,
    cmicMultiController: true,
    mdts: Math.log2(MAX_TRANSFER_BYTES / PAGE_BYTES),
    cntlid: controller.cntlid,
    ver: viewOf(VERSION).getUint32(0, true),
    ctrattHostId128: true,
    cntrltype: discovery ? ControllerType.discovery : ControllerType.io,
    acl: ABORT_LIMIT - 1,
    aerl: AER_LIMIT - 1,
    lpaCommandsSupported: true,
    lpaExtendedData: true,
    lpaSupportedPages: true,
    elpe: ERROR_LOG_ENTRIES - 1,
    kas: KEEP_ALIVE_GRANULARITY,
    maxcmd: port.queueDepth,
    oncsSaveSelect: true,
    sglsSupport: 1,
    sglsKeyed: true,
    sglsInCapsuleOffset: port.inCapsuleBytes > 0,
    subnqn: subsystem.nqn,
    ioccsz: (SQE_BYTES + port.inCapsuleBytes) / CAPSULE_UNIT,
    iorcsz: CQE_BYTES / CAPSULE_UNIT,
    msdbd: 1,
    oaesDiscovery: discovery,
  };
  return IdentifyController.encode(discovery ? values : { ...values, ...ioValues(controller) });
}

/** What only an I/O controller says. */
function ioValues({ subsystem, life }: Controller): Partial<RecordOf<typeof IdentifyController>> {
  return {
    oaesNamespaceAttribute: true,
    oaesAna: true,
    cmicAna: true,
    anatt: ANATT_SECONDS,
    anacap: ANACAP,
    anagrpmax: ANA_GROUP_MAX,
    nanagrpid: ANA_GROUP_MAX,
    oaesCrossControllerReset: true,
    ciu: life?.ciu ?? 0,
    cirn: life?.cirn ?? 0n,
    cqt: subsystem.commandQuiesceMs,
    ccrl: CROSS_CONTROLLER_RESET_LIMIT,
    sqes: 0x66,
    cqes: 0x44,
    nn: NSID_MAX,
    // Linux sizes its ANA log by it: not 0, and not above NN.
    mnan: NSID_MAX,
    oncsCompare: true,
    oncsDatasetManagement: true,
    oncsWriteZeroes: true,
    oncsVerify: true,
    vwcPresent: subsystem.volatileWriteCache,
    // Flush with NSID FFFFFFFFh is taken.
    vwcFlushAll: 3,
    // One firmware slot that cannot be written.
    frmw: 0b0000_0011,
    ofcsDisconnect: true,
  };
}

function identifyNamespace(namespace: Namespace, controller: Controller): Page {
  const { blocks, config, info } = namespace;
  // As Linux does: a path that cannot be used tells the size, but not what is in use of it (section 8.1.1).
  const told = ANA_STATES[controller.anaState(namespace)].capacity ? blocks : 0n;
  return IdentifyNamespace.encode({
    nsze: blocks,
    ncap: blocks,
    nuse: told,
    nmicShared: true,
    dlfeatRead: 1,
    dlfeatWriteZeroesDeallocate: info?.canDeallocate ?? false,
    nvmcap: told * BigInt(config.blockSize),
    anagrpid: config.anaGroup,
    nsattrWriteProtected: namespace.writeProtected,
    nguid: namespace.nguid,
    lbaf: [{ ms: 0, lbads: Math.log2(config.blockSize), rp: 0 }],
  });
}

function descriptors(namespace: Namespace): Page {
  return encodeNamespaceDescriptors([
    { type: DescriptorType.uuid, value: namespace.uuid },
    { type: DescriptorType.nguid, value: namespace.nguid },
    { type: DescriptorType.csi, value: Uint8Array.of(Csi.nvm) },
  ]);
}

function list({ subsystem }: Controller, { nsid }: Parsed): Page | Failure {
  if (nsid >= NSID_ALL - 1) {
    return fail(Status.invalidNamespace, offsets.nsid, 'a list starts below FFFFFFFEh');
  }
  const nsids = subsystem.activeNsids().filter((active) => active > nsid);
  return NamespaceList.encode({ nsids: nsids.slice(0, NAMESPACE_LIST_ENTRIES) });
}

/** The page of an active namespace; `inactive` for an NSID that exists but is not attached. */
function ofNamespace(
  build: (namespace: Namespace, controller: Controller) => Page,
  inactive?: Page,
) {
  return (controller: Controller, { nsid }: Parsed): Page | Failure => {
    const namespace = controller.subsystem.active(nsid);
    if (namespace) return build(namespace, controller);
    const exists = nsid >= 1 && nsid <= NSID_MAX;
    return exists && inactive
      ? inactive
      : fail(Status.invalidNamespace, offsets.nsid, `namespace ${nsid} is not attached`);
  };
}

const zeros = (): Page => new Uint8Array(IDENTIFY_BYTES);

function independent(namespace: Namespace): Page {
  return IdentifyIndependentNamespace.encode({
    nmicShared: true,
    anagrpid: namespace.anaGroup,
    nsattrWriteProtected: namespace.writeProtected,
    ready: true,
  });
}

export const IDENTIFY_ROWS: readonly CnsRow[] = [
  {
    cns: Cns.namespace,
    name: 'Namespace',
    discovery: false,
    csi: false,
    build: ofNamespace(identifyNamespace, zeros()),
  },
  {
    cns: Cns.controller,
    name: 'Controller',
    discovery: true,
    csi: false,
    build: identifyController,
  },
  {
    cns: Cns.activeNamespaces,
    name: 'Active Namespace List',
    discovery: false,
    csi: false,
    build: list,
  },
  {
    cns: Cns.namespaceDescriptors,
    name: 'Namespace Identification Descriptors',
    discovery: false,
    csi: false,
    build: ofNamespace(descriptors),
  },
  {
    cns: Cns.commandSetNamespace,
    name: 'NVM Namespace',
    discovery: false,
    csi: true,
    build: ofNamespace(zeros, zeros()),
  },
  {
    cns: Cns.commandSetController,
    name: 'NVM Controller',
    discovery: false,
    csi: true,
    // All zero: no limits besides MDTS.
    build: zeros,
  },
  {
    cns: Cns.commandSetActiveNamespaces,
    name: 'NVM Active Namespace List',
    discovery: false,
    csi: true,
    build: list,
  },
  {
    cns: Cns.independentNamespace,
    name: 'Command Set Independent Namespace',
    discovery: false,
    csi: false,
    build: ofNamespace(independent, zeros()),
  },
  {
    cns: Cns.commandSets,
    name: 'I/O Command Sets',
    discovery: false,
    csi: false,
    build: () => CommandSetList.encode({ first: { vector: 1n << BigInt(Csi.nvm) } }),
  },
];

const byCns = new Map(IDENTIFY_ROWS.map((row) => [row.cns, row]));

export function prepareIdentify({ controller, sqe }: Request): Prepared | Failure {
  const command = IdentifyCommand.decode(sqe);
  const row = byCns.get(command.cns);
  if (!row || (controller.discovery && !row.discovery)) {
    return fail(Status.invalidField, CNS_BYTE, `no Identify with CNS ${command.cns}`);
  }
  if (row.csi && command.csi !== Csi.nvm) {
    return fail(Status.invalidField, CSI_BYTE, `command set ${command.csi} is not here`);
  }
  return {
    length: IDENTIFY_BYTES,
    run: () => {
      const page = row.build(controller, command);
      return isFailure(page) ? page : reply(0n, page);
    },
  };
}
