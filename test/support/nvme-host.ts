/**
 * Capsules by hand on a RocePeer: builds SQEs from plain numbers (offsets of the NVMe specification, not the product's
 * codec) and brings up an admin or an I/O queue as a Linux host does.
 */
import { RocePeer } from './roce-peer.ts';

export interface SqeFields {
  readonly opcode: number;
  readonly flags?: number;
  readonly cid?: number;
  readonly nsid?: number;
  /** CDW10 .. CDW15. */
  readonly cdw?: readonly number[];
  readonly sgl?: Buffer;
}

let nextCid = 1;

export function keyedSgl(address: bigint, length: number, key: number, type = 0x4f): Buffer {
  const sgl = Buffer.alloc(16);
  sgl.writeBigUInt64LE(address, 0);
  sgl.writeUIntLE(length, 8, 3);
  sgl.writeUInt32LE(key >>> 0, 11);
  sgl.writeUInt8(type, 15);
  return sgl;
}

export function inCapsuleSgl(offset: bigint, length: number, type = 0x01): Buffer {
  const sgl = Buffer.alloc(16);
  sgl.writeBigUInt64LE(offset, 0);
  sgl.writeUInt32LE(length, 8);
  sgl.writeUInt8(type, 15);
  return sgl;
}

export const NO_DATA_SGL = keyedSgl(0n, 0, 0, 0x40);

export function sqe(fields: SqeFields): Buffer {
  const bytes = Buffer.alloc(64);
  bytes.writeUInt8(fields.opcode, 0);
  bytes.writeUInt8(fields.flags ?? 0x40, 1);
  bytes.writeUInt16LE(fields.cid ?? nextCid++ & 0x7fff, 2);
  bytes.writeUInt32LE(fields.nsid ?? 0, 4);
  (fields.sgl ?? NO_DATA_SGL).copy(bytes, 24);
  (fields.cdw ?? []).forEach((value, i) => bytes.writeUInt32LE(value >>> 0, 40 + 4 * i));
  return bytes;
}

/** SCT << 8 | SC. */
export function statusOf(cqe: Buffer): number {
  return (cqe.readUInt16LE(14) >> 1) & 0x7ff;
}

export function connectPrivateData(qid: number, entries: number, cntlid = 0): Buffer {
  const data = Buffer.alloc(32);
  data.writeUInt16LE(qid, 2);
  data.writeUInt16LE(entries, 4);
  data.writeUInt16LE(entries - 1, 6);
  data.writeUInt16LE(cntlid, 8);
  return data;
}

export interface ConnectFields {
  readonly qid?: number;
  readonly sqsize?: number;
  readonly recfmt?: number;
  readonly kato?: number;
  readonly cattr?: number;
  readonly cntlid?: number;
  readonly subnqn?: string | Buffer;
  readonly hostnqn?: string | Buffer;
  readonly hostid?: Buffer;
}

export const TEST_HOSTNQN = 'nqn.2014-08.org.nvmexpress:uuid:5c6e2a52-3cfd-4b3c-9d58-0a4c7f3d9a01';
export const TEST_HOSTID = Buffer.from('5c6e2a523cfd4b3c9d580a4c7f3d9a01', 'hex');

export function connectData(fields: ConnectFields): Buffer {
  const data = Buffer.alloc(1024);
  (fields.hostid ?? TEST_HOSTID).copy(data, 0);
  data.writeUInt16LE(fields.cntlid ?? 0xffff, 16);
  Buffer.from(fields.subnqn ?? '').copy(data, 256);
  Buffer.from(fields.hostnqn ?? TEST_HOSTNQN).copy(data, 512);
  return data;
}

export function connectSqe(fields: ConnectFields, sgl: Buffer): Buffer {
  const bytes = sqe({ opcode: 0x7f, nsid: 1, sgl });
  bytes.writeUInt16LE(fields.recfmt ?? 0, 40);
  bytes.writeUInt16LE(fields.qid ?? 0, 42);
  bytes.writeUInt16LE(fields.sqsize ?? 31, 44);
  bytes.writeUInt8(fields.cattr ?? 0, 46);
  bytes.writeUInt32LE(fields.kato ?? 0, 48);
  return bytes;
}

/** Sends a Connect with its data under a key; the CQE comes back. */
export function fabricsConnect(peer: RocePeer, fields: ConnectFields): Promise<Buffer> {
  const data = connectData(fields);
  const key = peer.register(data);
  return peer.command(connectSqe(fields, keyedSgl(0n, data.length, key)));
}

export function propertySet(peer: RocePeer, offset: number, value: number): Promise<Buffer> {
  const bytes = sqe({ opcode: 0x7f, nsid: 0, cdw: [0, offset, value] });
  return peer.command(bytes);
}

export function propertyGet(peer: RocePeer, offset: number, eight = false): Promise<Buffer> {
  return peer.command(sqe({ opcode: 0x7f, nsid: 4, cdw: [eight ? 1 : 0, offset] }));
}

export interface Bringup {
  readonly peer: RocePeer;
  readonly cntlid: number;
}

/** CM connection and Connect of the admin queue, controller enabled. */
export async function bringUpAdmin(
  local: string,
  remote: string,
  port: number,
  subnqn: string,
): Promise<Bringup> {
  const peer = await RocePeer.open(local, remote);
  const reply = await peer.connect(port, connectPrivateData(0, 32));
  if (reply.kind !== 'rep') throw new Error(`admin queue rejected, reason ${reply.reason}`);
  const connected = await fabricsConnect(peer, { subnqn });
  if (statusOf(connected) !== 0)
    throw new Error(`Connect: status ${statusOf(connected).toString(16)}`);
  await propertySet(peer, 0x14, 0x00460061);
  const csts = await propertyGet(peer, 0x1c);
  if ((csts.readUInt32LE(0) & 1) !== 1) throw new Error('controller is not ready');
  return { peer, cntlid: connected.readUInt16LE(0) };
}

/** An I/O queue of that controller from another address of this host. */
export async function bringUpIo(
  local: string,
  remote: string,
  port: number,
  subnqn: string,
  cntlid: number,
  qid = 1,
): Promise<RocePeer> {
  const peer = await RocePeer.open(local, remote);
  const reply = await peer.connect(port, connectPrivateData(qid, 32, cntlid));
  if (reply.kind !== 'rep') throw new Error(`I/O queue rejected, reason ${reply.reason}`);
  const connected = await fabricsConnect(peer, { qid, subnqn, cntlid });
  if (statusOf(connected) !== 0)
    throw new Error(`Connect: status ${statusOf(connected).toString(16)}`);
  return peer;
}
