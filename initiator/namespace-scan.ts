/**
 * Finds the namespaces of a controller: the active list (CNS 02h), then for each its descriptors (03h) and its data
 * (00h), and whether it is ready (08h) where controllers say so. What cannot be used is left out with its reason.
 */
import { NvmeStatusError } from '../native/common/errors.ts';
import { ZERO_UUID, formatUuid } from '../native/common/uuid.ts';
import {
  Cns,
  Csi,
  DescriptorType,
  IdentifyIndependentNamespace,
  IdentifyNamespace,
  NAMESPACE_LIST_ENTRIES,
  decodeNamespaceDescriptors,
  decodeNamespaceList,
} from '../native/wire/identify.ts';
import { identify } from './admin.ts';
import { ProtocolError } from './errors.ts';
import type { CommandOptions, Queue } from './queue.ts';

/** Pages of the active list we are ready to read: a limit on what a controller can make us do. */
const LIST_PAGES_MAX = 64;
const LBA_POWER_MIN = 9;
const LBA_POWER_MAX = 16;

export interface NamespaceIds {
  /** Text form; undefined when the controller gives none. */
  readonly uuid: string | undefined;
  /** Hexadecimal. */
  readonly nguid: string | undefined;
  readonly eui64: string | undefined;
}

export interface NamespaceFacts {
  readonly nsid: number;
  readonly lbaSize: number;
  readonly lbaCount: bigint;
  readonly writeProtected: boolean;
  readonly ids: NamespaceIds;
  readonly data: IdentifyNamespace;
}

export interface SkippedNamespace {
  readonly nsid: number;
  readonly reason: string;
}

export interface ScanContext {
  readonly queue: Queue;
  readonly options: CommandOptions;
  /** CC.CSS = 6: every usable namespace has a CSI descriptor. */
  readonly severalCommandSets: boolean;
  /** CAP.CRMS bit 1: namespaces may become ready later than the controller. */
  readonly reportsReadiness: boolean;
}

/** Throws a ProtocolError for a list that does not ascend: it could go on for ever. */
export async function activeNamespaces(context: ScanContext): Promise<number[]> {
  const all: number[] = [];
  let last = 0;
  for (let page = 0; page < LIST_PAGES_MAX; page += 1) {
    const fields = { cns: Cns.activeNamespaces, nsid: last, name: 'Active Namespace ID list' };
    const nsids = decodeNamespaceList(await identify(context.queue, fields, context.options));
    for (const nsid of nsids) {
      if (nsid <= last) {
        throw new ProtocolError(
          `the list of active namespaces does not ascend: ${nsid} follows ${last}`,
        );
      }
      last = nsid;
    }
    all.push(...nsids);
    if (nsids.length < NAMESPACE_LIST_ENTRIES) break;
  }
  return all;
}

function hexUnlessZero(bytes: Uint8Array | undefined): string | undefined {
  return bytes?.some((byte) => byte !== 0) === true
    ? Buffer.from(bytes).toString('hex')
    : undefined;
}

interface Descriptors {
  readonly uuid: string | undefined;
  readonly nguid: Uint8Array | undefined;
  readonly eui64: Uint8Array | undefined;
  readonly csi: number | undefined;
}

async function readDescriptors(context: ScanContext, nsid: number): Promise<Descriptors> {
  const fields = {
    cns: Cns.namespaceDescriptors,
    nsid,
    name: 'Namespace Identification Descriptors',
  };
  let page: Uint8Array;
  try {
    page = await identify(context.queue, fields, context.options);
  } catch (error) {
    // Controllers before NVMe 1.3 do not know this page.
    const old = error instanceof NvmeStatusError && error.status !== 'invalidNamespace';
    if (!old) throw error;
    return { uuid: undefined, nguid: undefined, eui64: undefined, csi: undefined };
  }
  const list = decodeNamespaceDescriptors(page);
  const value = (type: number): Uint8Array | undefined =>
    list.find((descriptor) => descriptor.type === type)?.value;
  const uuidBytes = value(DescriptorType.uuid);
  const uuid = uuidBytes && formatUuid(uuidBytes);
  return {
    uuid: uuid === ZERO_UUID ? undefined : uuid,
    nguid: value(DescriptorType.nguid),
    eui64: value(DescriptorType.eui64),
    csi: value(DescriptorType.csi)?.[0],
  };
}

async function isReady(context: ScanContext, nsid: number): Promise<boolean> {
  const fields = {
    cns: Cns.independentNamespace,
    nsid,
    name: 'I/O Command Set Independent Namespace',
  };
  try {
    const page = await identify(context.queue, fields, context.options);
    return IdentifyIndependentNamespace.decode(page).ready;
  } catch (error) {
    if (error instanceof NvmeStatusError && error.status !== 'invalidNamespace') return true;
    throw error;
  }
}

function commandSetProblem(context: ScanContext, csi: number | undefined): string | undefined {
  if (csi === undefined) {
    return context.severalCommandSets ? 'it does not say which command set it has' : undefined;
  }
  return csi === Csi.nvm ? undefined : `its command set ${csi} is not supported`;
}

function formatProblem(data: IdentifyNamespace): string | undefined {
  const format = data.lbaf[data.flbasFormat];
  if (data.flbasFormat > data.nlbaf || !format) return 'its LBA format does not exist';
  if (format.lbads < LBA_POWER_MIN || format.lbads > LBA_POWER_MAX) {
    return `its blocks have 2^${format.lbads} bytes`;
  }
  return format.ms === 0 ? undefined : `its blocks carry ${format.ms} bytes of metadata`;
}

/** One namespace; undefined when it is not attached (any more). */
export async function examineNamespace(
  context: ScanContext,
  nsid: number,
): Promise<NamespaceFacts | SkippedNamespace | undefined> {
  try {
    const descriptors = await readDescriptors(context, nsid);
    const foreign = commandSetProblem(context, descriptors.csi);
    if (foreign !== undefined) return { nsid, reason: foreign };
    const fields = { cns: Cns.namespace, nsid, name: 'Namespace' };
    const data = IdentifyNamespace.decode(await identify(context.queue, fields, context.options));
    if (data.ncap === 0n || data.nsze === 0n) return undefined;
    const unknown = formatProblem(data);
    if (unknown !== undefined) return { nsid, reason: unknown };
    if (context.reportsReadiness && !(await isReady(context, nsid))) {
      return { nsid, reason: 'it is not ready yet' };
    }
    return {
      nsid,
      lbaSize: 2 ** (data.lbaf[data.flbasFormat]?.lbads ?? LBA_POWER_MIN),
      lbaCount: data.nsze,
      writeProtected: data.nsattrWriteProtected,
      ids: {
        uuid: descriptors.uuid,
        nguid: hexUnlessZero(descriptors.nguid ?? data.nguid),
        eui64: hexUnlessZero(descriptors.eui64 ?? data.eui64),
      },
      data,
    };
  } catch (error) {
    // Detached between the list and the question.
    if (error instanceof NvmeStatusError && error.status === 'invalidNamespace') return undefined;
    throw error;
  }
}

/** Two NSIDs with one identity would be one namespace twice: the second is left out. */
export function findDuplicate(
  facts: NamespaceFacts,
  others: Iterable<NamespaceFacts>,
): NamespaceFacts | undefined {
  const { uuid, nguid, eui64 } = facts.ids;
  for (const other of others) {
    if (other.nsid === facts.nsid) continue;
    if (uuid !== undefined && other.ids.uuid === uuid) return other;
    if (nguid !== undefined && other.ids.nguid === nguid) return other;
    if (eui64 !== undefined && other.ids.eui64 === eui64) return other;
  }
  return undefined;
}
