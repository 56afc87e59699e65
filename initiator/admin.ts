/**
 * Admin and Fabrics commands as functions: each builds its SQE, runs on the admin queue and returns what the answer
 * means. Nothing here decides when to send which.
 */
import { viewOf } from '../native/wire/layout.ts';
import { ConnectCommand, ConnectData, ConnectResult } from '../native/wire/fabrics.ts';
import { PropertyGetCommand, PropertySetCommand } from '../native/wire/fabrics.ts';
import { IDENTIFY_BYTES } from '../native/wire/identify.ts';
import { AdminOpcode, FabricsType } from '../native/wire/opcodes.ts';
import {
  CrossControllerResetCommand,
  CrossControllerResetResult,
  GetFeaturesCommand,
  GetLogPageCommand,
  IdentifyCommand,
  PSDT_SGL,
  SetFeaturesCommand,
  Sqe,
} from '../native/wire/sqe.ts';
import { ArgumentError, ProtocolError } from './errors.ts';
import type { CommandOptions, CommandResult, Queue } from './queue.ts';

/** One transfer of a log page: what every controller's MDTS allows. */
const LOG_CHUNK_BYTES = 4096;
const LOG_BYTES_MAX = 16 * 1024 * 1024;

export interface ConnectFields {
  readonly qid: number;
  /** Submission queue entries. */
  readonly entries: number;
  readonly keepAliveMs: number;
  readonly cntlid: number;
  readonly hostId: Uint8Array;
  readonly hostNqn: string;
  readonly subsystemNqn: string;
}

/** Fabrics Connect, first command of every queue. */
export async function fabricsConnect(
  queue: Queue,
  fields: ConnectFields,
  options: CommandOptions,
): Promise<ConnectResult> {
  const sqe = ConnectCommand.encode({
    opcode: AdminOpcode.fabrics,
    psdt: PSDT_SGL,
    fctype: FabricsType.connect,
    qid: fields.qid,
    sqsize: fields.entries - 1,
    kato: fields.qid === 0 ? fields.keepAliveMs : 0,
  });
  const bytes = ConnectData.encode({
    hostid: fields.hostId,
    cntlid: fields.cntlid,
    subnqn: fields.subsystemNqn,
    hostnqn: fields.hostNqn,
  });
  const request = { name: 'Connect', sqe, data: { kind: 'send', bytes } } as const;
  const { result } = await queue.run(request, options).result;
  return ConnectResult.decode(resultBytes(result));
}

/** Dwords 0 and 1 of a completion as bytes, for the layouts of results. */
export function resultBytes(result: bigint): Uint8Array {
  const bytes = new Uint8Array(8);
  viewOf(bytes).setBigUint64(0, result, true);
  return bytes;
}

export async function propertyGet(
  queue: Queue,
  offset: number,
  bytes: 4 | 8,
  options: CommandOptions,
): Promise<Uint8Array> {
  const sqe = PropertyGetCommand.encode({
    opcode: AdminOpcode.fabrics,
    psdt: PSDT_SGL,
    fctype: FabricsType.propertyGet,
    size: bytes === 8 ? 1 : 0,
    ofst: offset,
  });
  const request = { name: 'Property Get', sqe, data: { kind: 'none' } } as const;
  const { result } = await queue.run(request, options).result;
  return resultBytes(result).slice(0, bytes);
}

/** Four-byte properties only: no other may be written. */
export async function propertySet(
  queue: Queue,
  offset: number,
  value: Uint8Array,
  options: CommandOptions,
): Promise<void> {
  const sqe = PropertySetCommand.encode({
    opcode: AdminOpcode.fabrics,
    psdt: PSDT_SGL,
    fctype: FabricsType.propertySet,
    ofst: offset,
    value: BigInt(viewOf(value).getUint32(0, true)),
  });
  const request = { name: 'Property Set', sqe, data: { kind: 'none' } } as const;
  await queue.run(request, options).result;
}

export interface IdentifyFields {
  readonly cns: number;
  readonly nsid?: number;
  readonly csi?: number;
  readonly name: string;
}

/** Always a whole page of 4096 bytes. */
export async function identify(
  queue: Queue,
  fields: IdentifyFields,
  options: CommandOptions,
): Promise<Uint8Array> {
  const sqe = IdentifyCommand.encode({
    opcode: AdminOpcode.identify,
    psdt: PSDT_SGL,
    nsid: fields.nsid ?? 0,
    cns: fields.cns,
    csi: fields.csi ?? 0,
  });
  const name = `Identify ${fields.name}`;
  const data = { kind: 'receive', length: IDENTIFY_BYTES } as const;
  const answer = await queue.run({ name, sqe, data }, options).result;
  if (answer.data.length !== IDENTIFY_BYTES) {
    throw new ProtocolError(`${name}: ${answer.data.length} bytes, ${IDENTIFY_BYTES} expected`);
  }
  return answer.data;
}

export interface LogPageFields {
  readonly lid: number;
  readonly bytes: number;
  readonly nsid?: number;
  readonly offset?: number;
  readonly lsp?: number;
  readonly csi?: number;
  /** Keep the event that led to this log. */
  readonly retainEvent?: boolean;
}

/** Reads a log page in pieces of 4 KiB. Offsets beyond the first piece need a controller with extended data. */
export async function getLogPage(
  queue: Queue,
  fields: LogPageFields,
  options: CommandOptions,
): Promise<Uint8Array> {
  const start = fields.offset ?? 0;
  const { bytes } = fields;
  if (bytes < 4 || bytes % 4 !== 0 || bytes > LOG_BYTES_MAX || start % 4 !== 0 || start < 0) {
    throw new ArgumentError(
      `a log page is read in whole dwords, 4 to ${LOG_BYTES_MAX} bytes, not ${bytes} at ${start}`,
    );
  }
  const page = new Uint8Array(bytes);
  for (let done = 0; done < bytes; done += LOG_CHUNK_BYTES) {
    const length = Math.min(LOG_CHUNK_BYTES, bytes - done);
    const last = done + length === bytes;
    const piece = await getLogPiece(queue, fields, start + done, length, !last, options);
    page.set(piece, done);
  }
  return page;
}

async function getLogPiece(
  queue: Queue,
  fields: LogPageFields,
  offset: number,
  length: number,
  more: boolean,
  options: CommandOptions,
): Promise<Uint8Array> {
  const dwords = length / 4 - 1;
  const sqe = GetLogPageCommand.encode({
    opcode: AdminOpcode.getLogPage,
    psdt: PSDT_SGL,
    nsid: fields.nsid ?? 0,
    lid: fields.lid,
    lsp: fields.lsp ?? 0,
    // Only the last piece may clear the event, or changes between the pieces would be lost.
    rae: more || (fields.retainEvent ?? false),
    numdl: dwords & 0xffff,
    numdu: dwords >>> 16,
    lpo: BigInt(offset),
    csi: fields.csi ?? 0,
  });
  const name = `Get Log Page ${fields.lid.toString(16).padStart(2, '0')}h`;
  const answer = await queue.run({ name, sqe, data: { kind: 'receive', length } }, options).result;
  if (answer.data.length !== length) {
    throw new ProtocolError(`${name}: ${answer.data.length} bytes, ${length} expected`);
  }
  return answer.data;
}

export interface GetFeatureFields {
  readonly fid: number;
  readonly nsid?: number;
  readonly select?: number;
  readonly cdw11?: number;
  /** For features that return data. */
  readonly bytes?: number;
}

export function getFeatures(
  queue: Queue,
  fields: GetFeatureFields,
  options: CommandOptions,
): Promise<CommandResult> {
  const sqe = GetFeaturesCommand.encode({
    opcode: AdminOpcode.getFeatures,
    psdt: PSDT_SGL,
    nsid: fields.nsid ?? 0,
    fid: fields.fid,
    sel: fields.select ?? 0,
    cdw11: fields.cdw11 ?? 0,
  });
  const length = fields.bytes ?? 0;
  const data = length > 0 ? ({ kind: 'receive', length } as const) : ({ kind: 'none' } as const);
  return queue.run({ name: `Get Features ${hexId(fields.fid)}`, sqe, data }, options).result;
}

export function setFeatures(
  queue: Queue,
  fields: { readonly fid: number; readonly cdw11: number; readonly nsid?: number },
  options: CommandOptions,
): Promise<CommandResult> {
  const sqe = SetFeaturesCommand.encode({
    opcode: AdminOpcode.setFeatures,
    psdt: PSDT_SGL,
    nsid: fields.nsid ?? 0,
    fid: fields.fid,
    cdw11: fields.cdw11,
  });
  const name = `Set Features ${hexId(fields.fid)}`;
  return queue.run({ name, sqe, data: { kind: 'none' } }, options).result;
}

function hexId(id: number): string {
  return `${id.toString(16).padStart(2, '0')}h`;
}

export async function keepAlive(queue: Queue, options: CommandOptions): Promise<void> {
  const sqe = Sqe.encode({ opcode: AdminOpcode.keepAlive, psdt: PSDT_SGL });
  await queue.run({ name: 'Keep Alive', sqe, data: { kind: 'none' } }, options).result;
}

/** Which controller, and which life of it, as Identify told: CNTLID, CIU, CIRN. */
export interface CrossControllerResetFields {
  readonly cntlid: number;
  readonly ciu: number;
  readonly cirn: bigint;
}

/** True: that controller has ended already; false: log page 1Eh tells when. */
export async function crossControllerReset(
  queue: Queue,
  { cntlid, ciu, cirn }: CrossControllerResetFields,
  options: CommandOptions,
): Promise<boolean> {
  const sqe = CrossControllerResetCommand.encode({
    opcode: AdminOpcode.crossControllerReset,
    psdt: PSDT_SGL,
    icid: cntlid,
    ciu,
    cirn,
  });
  const request = { name: 'Cross-Controller Reset', sqe, data: { kind: 'none' } } as const;
  const { result } = await queue.run(request, options).result;
  return CrossControllerResetResult.decode(resultBytes(result)).immediate;
}

/** Ends when the controller has something to say, which may be never. */
export async function asyncEventRequest(queue: Queue): Promise<bigint> {
  const sqe = Sqe.encode({ opcode: AdminOpcode.asyncEventRequest, psdt: PSDT_SGL });
  const request = { name: 'Asynchronous Event Request', sqe, data: { kind: 'none' } } as const;
  const { result } = await queue.run(request, { timeoutMs: 0 }).result;
  return result;
}
