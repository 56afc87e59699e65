/**
 * Reads the ANA log page of a controller and says which state each group has on this path. The page comes from an
 * untrusted peer: counts are checked against what was read, and it is read again when it changed between two pieces.
 */
import { AnaGroupDescriptor, AnaLogHeader, AnaState as StateCode } from '../../native/wire/ana.ts';
import type { IdentifyController } from '../../native/wire/identify.ts';
import { LogId } from '../../native/wire/logs.ts';
import type { LogPageFields } from '../admin.ts';
import { ProtocolError } from '../errors.ts';

export type AnaState =
  'optimized' | 'non-optimized' | 'inaccessible' | 'persistent-loss' | 'change';

const STATES: ReadonlyMap<number, AnaState> = new Map([
  [StateCode.optimized, 'optimized'],
  [StateCode.nonOptimized, 'non-optimized'],
  [StateCode.inaccessible, 'inaccessible'],
  [StateCode.persistentLoss, 'persistent-loss'],
  [StateCode.change, 'change'],
]);

export interface AnaGroup {
  readonly id: number;
  readonly state: AnaState;
  readonly nsids: readonly number[];
}

export interface AnaLog {
  readonly changeCount: bigint;
  readonly groups: ReadonlyMap<number, AnaGroup>;
}

/** What a page may be at most, whatever Identify says: 1 MiB holds 260,000 namespaces. */
const PAGE_BYTES_MAX = 1 << 20;
/** Of one reading: no controller's MDTS is less. */
const PIECE_BYTES = 4096;
const READS_MAX = 8;
const NSID_BYTES = 4;

/** Bytes that the whole page has at most, from what the controller says of itself. */
export function anaLogBytesMax(data: IdentifyController): number {
  const { nanagrpid, mnan, nn } = data;
  const namespaces = mnan === 0 ? nn : Math.min(mnan, nn);
  const bytes = AnaLogHeader.size + nanagrpid * AnaGroupDescriptor.size + namespaces * NSID_BYTES;
  return Math.min(bytes, PAGE_BYTES_MAX);
}

/** Throws a ProtocolError that names the field for a page that contradicts itself. */
export function decodeAnaLog(page: Uint8Array, groupsMax: number): AnaLog {
  if (page.length < AnaLogHeader.size) {
    throw new ProtocolError(`ANA log: its header has 16 bytes, the page ${page.length}`);
  }
  const header = AnaLogHeader.decode(page);
  const groups = new Map<number, AnaGroup>();
  let at = AnaLogHeader.size;
  for (let index = 0; index < header.ngrps; index += 1) {
    if (page.length - at < AnaGroupDescriptor.size) {
      throw new ProtocolError(
        `ANA log: NGRPS is ${header.ngrps}, but group descriptor ${index} lies beyond its ${page.length} bytes`,
      );
    }
    const { grpid, nnsids, state } = AnaGroupDescriptor.decode(page.subarray(at));
    at += AnaGroupDescriptor.size;
    if (grpid === 0 || grpid > groupsMax) {
      throw new ProtocolError(
        `ANA log: group id of descriptor ${index} is ${grpid}, groups are 1 to ${groupsMax} (ANAGRPMAX)`,
      );
    }
    const known = STATES.get(state);
    if (!known)
      throw new ProtocolError(`ANA log: group ${grpid} has the unknown ANA state ${state}`);
    if (groups.has(grpid)) throw new ProtocolError(`ANA log: group ${grpid} is there twice`);
    if (nnsids > (page.length - at) / NSID_BYTES) {
      throw new ProtocolError(
        `ANA log: NNSIDS of group ${grpid} is ${nnsids}, more than the page's ${page.length} bytes hold`,
      );
    }
    const view = new DataView(page.buffer, page.byteOffset + at, nnsids * NSID_BYTES);
    const nsids = Array.from({ length: nnsids }, (_, each) =>
      view.getUint32(each * NSID_BYTES, true),
    );
    groups.set(grpid, { id: grpid, state: known, nsids });
    at += nnsids * NSID_BYTES;
  }
  return { changeCount: header.chgcnt, groups };
}

/** Bytes of the page, as far as those that were read can tell. */
function knownBytes(page: Uint8Array): number {
  const { ngrps } = AnaLogHeader.decode(page);
  let at = AnaLogHeader.size;
  for (let index = 0; index < ngrps; index += 1) {
    const descriptor = page.subarray(at);
    at += AnaGroupDescriptor.size;
    if (descriptor.length < AnaGroupDescriptor.size) break;
    at += AnaGroupDescriptor.decode(descriptor).nnsids * NSID_BYTES;
  }
  return at;
}

type ReadLog = (fields: LogPageFields) => Promise<Uint8Array>;

/** As many pieces as the descriptors say there are, none beyond `most`: a controller may refuse that. */
async function readPage(read: ReadLog, most: number): Promise<Uint8Array> {
  let page = new Uint8Array();
  for (;;) {
    const bytes = Math.min(PIECE_BYTES, most - page.length);
    const piece = await read({ lid: LogId.ana, bytes, offset: page.length, retainEvent: true });
    page = Buffer.concat([page, piece]);
    if (Math.min(knownBytes(page), most) <= page.length) return page;
  }
}

/** The page as it stood at one moment, and the event that told of it cleared. */
export async function readAnaLog(read: ReadLog, data: IdentifyController): Promise<AnaLog> {
  const most = anaLogBytesMax(data);
  for (let round = 0; round < READS_MAX; round += 1) {
    const page = await readPage(read, most);
    const again = await read({ lid: LogId.ana, bytes: AnaLogHeader.size });
    if (AnaLogHeader.decode(page).chgcnt === AnaLogHeader.decode(again).chgcnt) {
      return decodeAnaLog(page, data.anagrpmax);
    }
  }
  throw new ProtocolError(`ANA log: its change count did not settle in ${READS_MAX} readings`);
}
