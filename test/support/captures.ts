/**
 * Reads the golden captures into NVMe messages, naively: pcap records, IPv4/IPv6, RoCEv2, and what each queue pair carried.
 * Shares nothing with the product. Frames that came twice (loss captures) are taken once.
 */
import { readFileSync, readdirSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const FOLDER = join(dirname(fileURLToPath(import.meta.url)), '..', 'fixtures', 'captures');

export interface Frame {
  readonly source: string;
  readonly destination: string;
  readonly opcode: number;
  readonly qpn: number;
  readonly psn: number;
  readonly payload: Buffer;
}

/** One SEND, whole: a command capsule, a response, or a MAD on queue pair 1. */
export interface Message {
  /** Place in the capture. */
  readonly frame: number;
  readonly source: string;
  readonly destination: string;
  readonly qpn: number;
  readonly bytes: Buffer;
}

/** A command, its response, and the data that RDMA WRITE or READ moved for it. */
export interface Exchange {
  readonly frame: number;
  /** Queue pair at the target, and its queue id from connection management. */
  readonly qpn: number;
  readonly qid: number;
  readonly sqe: Buffer;
  /** What the host sent: in the capsule, or fetched by RDMA READ. */
  readonly sent: Buffer;
  readonly cqe: Buffer | undefined;
  /** What the target wrote to the host. */
  readonly received: Buffer;
}

export function captureNames(): string[] {
  return readdirSync(FOLDER)
    .filter((name) => name.endsWith('.pcap'))
    .map((name) => name.slice(0, -'.pcap'.length));
}

const EXTENSION_BYTES: Readonly<Record<number, number>> = {
  0x03: 4,
  0x05: 4,
  0x06: 16,
  0x09: 4,
  0x0a: 16,
  0x0b: 20,
  0x0c: 16,
  0x0d: 4,
  0x0f: 4,
  0x10: 4,
  0x11: 4,
  0x12: 12,
  0x13: 28,
  0x14: 28,
  0x16: 4,
  0x17: 4,
  0x64: 8,
  0x65: 12,
};

function readFrame(ethernet: Buffer): Frame | undefined {
  const v4 = ethernet.readUInt16BE(12) === 0x0800;
  const ip = ethernet.subarray(14);
  const udp = ip.subarray(v4 ? 20 : 40);
  const length = udp.readUInt16BE(4);
  const bth = udp.subarray(8, length);
  if (udp.readUInt16BE(2) !== 4791 || bth.length < 16) return undefined;
  const opcode = bth.readUInt8(0);
  const pad = (bth.readUInt8(1) >> 4) & 3;
  return {
    source: (v4 ? ip.subarray(12, 16) : ip.subarray(8, 24)).toString('hex'),
    destination: (v4 ? ip.subarray(16, 20) : ip.subarray(24, 40)).toString('hex'),
    opcode,
    qpn: bth.readUInt32BE(4) & 0xffffff,
    psn: bth.readUInt32BE(8) & 0xffffff,
    payload: bth.subarray(12 + (EXTENSION_BYTES[opcode] ?? 0), bth.length - 4 - pad),
  };
}

export function readFrames(name: string): Frame[] {
  const file = readFileSync(join(FOLDER, `${name}.pcap`));
  const frames: Frame[] = [];
  for (let at = 24; at < file.length;) {
    const length = file.readUInt32LE(at + 8);
    const frame = readFrame(file.subarray(at + 16, at + 16 + length));
    if (frame) frames.push(frame);
    at += 16 + length;
  }
  return frames;
}

const SEND_FIRST = 0x00;
const SEND_LAST: ReadonlySet<number> = new Set([0x02, 0x03, 0x16]);
const SEND_ONLY: ReadonlySet<number> = new Set([0x04, 0x05, 0x17, 0x64]);

/** Every SEND of the capture, in the order of its last packet. */
export function readMessages(name: string): Message[] {
  const open = new Map<string, { parts: Buffer[]; next: number }>();
  const messages: Message[] = [];
  readFrames(name).forEach((frame, index) => {
    const key = `${frame.destination}/${frame.qpn}`;
    const begun = open.get(key);
    const whole = (bytes: Buffer): void => {
      const { source, destination, qpn } = frame;
      messages.push({ frame: index + 1, source, destination, qpn, bytes });
      open.delete(key);
    };
    if (SEND_ONLY.has(frame.opcode)) whole(frame.payload);
    else if (frame.opcode === SEND_FIRST) {
      open.set(key, { parts: [frame.payload], next: frame.psn + 1 });
    } else if (
      begun &&
      begun.next === frame.psn &&
      (frame.opcode === 0x01 || SEND_LAST.has(frame.opcode))
    ) {
      begun.parts.push(frame.payload);
      begun.next++;
      if (SEND_LAST.has(frame.opcode)) whole(Buffer.concat(begun.parts));
    }
  });
  return messages;
}

/** RDMA WRITE payload is 06 first, 07 middle, 08 last, 0a only; READ responses 0d to 10. */
const WRITES: ReadonlySet<number> = new Set([0x06, 0x07, 0x08, 0x0a]);
const READ_RESPONSES: ReadonlySet<number> = new Set([0x0d, 0x0e, 0x0f, 0x10]);

interface Association {
  readonly target: string;
  readonly hostQpn: number;
  readonly targetQpn: number;
  readonly qid: number;
}

/** Queue pairs from the REQ and REP datagrams. MAD header 24 bytes; CM offsets count from its end. */
function readAssociations(name: string): Association[] {
  const requests = new Map<number, { qpn: number; qid: number }>();
  const found: Association[] = [];
  for (const { qpn, bytes, source } of readMessages(name)) {
    if (qpn !== 1) continue;
    const attribute = bytes.readUInt16BE(16);
    const cm = bytes.subarray(24);
    if (attribute === 0x10) {
      requests.set(cm.readUInt32BE(0), {
        qpn: cm.readUInt32BE(32) >>> 8,
        qid: cm.readUInt16LE(140 + 36 + 2),
      });
    } else if (attribute === 0x13) {
      const request = requests.get(cm.readUInt32BE(4));
      const targetQpn = cm.readUInt32BE(12) >>> 8;
      if (request && !found.some((known) => known.targetQpn === targetQpn)) {
        found.push({ target: source, hostQpn: request.qpn, targetQpn, qid: request.qid });
      }
    }
  }
  return found;
}

interface Pending {
  frame: number;
  sqe: Buffer;
  sent: Buffer[];
  cqe: Buffer | undefined;
  received: Buffer[];
}

/**
 * Commands of one queue pair in order. RDMA data belongs to the oldest command without a response that moves data that
 * way: true for the captures' admin queues, where one command at a time moves data.
 */
function readQueue(name: string, { target, hostQpn, targetQpn, qid }: Association): Exchange[] {
  const commands: Pending[] = [];
  const seen = new Set<string>();
  const messages = new Map(readMessages(name).map((message) => [message.frame, message]));
  readFrames(name).forEach((frame, index) => {
    const toTarget = frame.destination === target && frame.qpn === targetQpn;
    const toHost = frame.source === target && frame.qpn === hostQpn;
    const key = `${toTarget}/${frame.psn}/${frame.opcode}`;
    if ((!toTarget && !toHost) || seen.has(key)) return;
    seen.add(key);
    const message = messages.get(index + 1)?.bytes;
    const open = (bits: number): Pending | undefined =>
      commands.find(({ cqe, sqe }) => {
        const code = sqe[0] === 0x7f ? (sqe[4] ?? 0) : (sqe[0] ?? 0);
        return cqe === undefined && (code & 3) === bits;
      });
    if (toTarget && message && message.length >= 64) {
      const sent = message.length > 64 ? [message.subarray(64)] : [];
      commands.push({
        frame: index + 1,
        sqe: message.subarray(0, 64),
        sent,
        cqe: undefined,
        received: [],
      });
    } else if (toTarget && READ_RESPONSES.has(frame.opcode)) open(1)?.sent.push(frame.payload);
    else if (toHost && WRITES.has(frame.opcode)) open(2)?.received.push(frame.payload);
    else if (toHost && message?.length === 16) {
      const cid = message.readUInt16LE(12);
      const command = commands.find(
        (one) => one.cqe === undefined && one.sqe.readUInt16LE(2) === cid,
      );
      if (command) command.cqe = message;
    }
  });
  return commands.map(({ frame, sqe, sent, cqe, received }) => ({
    frame,
    qpn: targetQpn,
    qid,
    sqe,
    sent: Buffer.concat(sent),
    cqe,
    received: Buffer.concat(received),
  }));
}

/** All NVMe commands of a capture, by queue pair and in order. */
export function readExchanges(name: string): Exchange[][] {
  return readAssociations(name)
    .map((association) => readQueue(name, association))
    .filter((commands) => commands.length > 0);
}
