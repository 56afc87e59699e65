/**
 * A deliberately naive RoCEv2 packet codec for tests: shares nothing with the product, so that both agree only when both
 * are right. IPv4 only; the ICRC is computed for identification 0 with DF, as an unconnected socket with path MTU
 * discovery sends.
 */
import { crc32 } from 'node:zlib';

export const ROCE_PORT = 4791;

export interface RocePacket {
  readonly opcode: number;
  readonly qpn: number;
  readonly psn: number;
  readonly ackRequest: boolean;
  readonly payload: Buffer;
  readonly reth?: { readonly va: bigint; readonly rkey: number; readonly length: number };
  readonly aeth?: { readonly syndrome: number; readonly msn: number };
  readonly ieth?: number;
  readonly deth?: { readonly qkey: number; readonly qpn: number };
}

const RETH = new Set([0x06, 0x0a, 0x0b, 0x0c]);
const AETH = new Set([0x0d, 0x0f, 0x10, 0x11, 0x12]);
const IETH = new Set([0x16, 0x17]);
const DETH = new Set([0x64, 0x65]);

function addressBytes(address: string): number[] {
  return address.split('.').map(Number);
}

/** ICRC of a UDP payload without its last four bytes. */
export function icrc(
  body: Buffer,
  source: string,
  sourcePort: number,
  destination: string,
  destinationPort = ROCE_PORT,
): number {
  const header = Buffer.alloc(36, 0xff);
  const udpLength = 8 + body.length + 4;
  header.writeUInt8(0x45, 8);
  header.writeUInt16BE(20 + udpLength, 10);
  header.writeUInt16BE(0, 12);
  header.writeUInt16BE(0x4000, 14);
  header.writeUInt8(17, 17);
  header.set(addressBytes(source), 20);
  header.set(addressBytes(destination), 24);
  header.writeUInt16BE(sourcePort, 28);
  header.writeUInt16BE(destinationPort, 30);
  header.writeUInt16BE(udpLength, 32);
  const masked = Buffer.from(body);
  masked[4] = 0xff;
  return crc32(masked, crc32(header));
}

export function encode(
  packet: Omit<RocePacket, 'payload'> & { readonly payload?: Buffer },
): Buffer {
  const payload = packet.payload ?? Buffer.alloc(0);
  const pad = -payload.length & 3;
  const bth = Buffer.alloc(12);
  bth.writeUInt8(packet.opcode, 0);
  bth.writeUInt8(pad << 4, 1);
  bth.writeUInt16BE(0xffff, 2);
  bth.writeUInt32BE(packet.qpn, 4);
  bth.writeUInt32BE(((packet.ackRequest ? 0x80000000 : 0) | packet.psn) >>> 0, 8);
  const parts = [bth];
  if (packet.deth) {
    const deth = Buffer.alloc(8);
    deth.writeUInt32BE(packet.deth.qkey, 0);
    deth.writeUInt32BE(packet.deth.qpn, 4);
    parts.push(deth);
  }
  if (packet.reth) {
    const reth = Buffer.alloc(16);
    reth.writeBigUInt64BE(packet.reth.va, 0);
    reth.writeUInt32BE(packet.reth.rkey, 8);
    reth.writeUInt32BE(packet.reth.length, 12);
    parts.push(reth);
  }
  if (packet.aeth) {
    const aeth = Buffer.alloc(4);
    aeth.writeUInt32BE(((packet.aeth.syndrome << 24) | packet.aeth.msn) >>> 0, 0);
    parts.push(aeth);
  }
  if (packet.ieth !== undefined) {
    const ieth = Buffer.alloc(4);
    ieth.writeUInt32BE(packet.ieth, 0);
    parts.push(ieth);
  }
  return Buffer.concat([...parts, payload, Buffer.alloc(pad)]);
}

/** Decodes a UDP payload (with ICRC, which is not checked here). */
export function decode(datagram: Buffer): RocePacket {
  const opcode = datagram.readUInt8(0);
  const pad = (datagram.readUInt8(1) >> 4) & 3;
  const word = datagram.readUInt32BE(8);
  let at = 12;
  const extra: { -readonly [K in keyof RocePacket]?: RocePacket[K] } = {};
  if (DETH.has(opcode)) {
    extra.deth = { qkey: datagram.readUInt32BE(at), qpn: datagram.readUInt32BE(at + 4) & 0xffffff };
    at += 8;
  }
  if (RETH.has(opcode)) {
    extra.reth = {
      va: datagram.readBigUInt64BE(at),
      rkey: datagram.readUInt32BE(at + 8),
      length: datagram.readUInt32BE(at + 12),
    };
    at += 16;
  }
  if (AETH.has(opcode)) {
    const aeth = datagram.readUInt32BE(at);
    extra.aeth = { syndrome: aeth >>> 24, msn: aeth & 0xffffff };
    at += 4;
  }
  if (IETH.has(opcode)) {
    extra.ieth = datagram.readUInt32BE(at);
    at += 4;
  }
  return {
    opcode,
    qpn: datagram.readUInt32BE(4) & 0xffffff,
    psn: word & 0xffffff,
    ackRequest: word >>> 31 === 1,
    payload: datagram.subarray(at, datagram.length - 4 - pad),
    ...extra,
  };
}
