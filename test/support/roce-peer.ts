/**
 * A host made by hand for tests: one RC queue pair over a plain UDP socket, that sends exactly the packets and capsules it
 * is told to, well-formed or not. It acknowledges what comes, serves RDMA READs and takes RDMA WRITEs on its registered
 * buffers, and hands response capsules to whoever waits. No retransmission: loopback loses nothing it cares about.
 */
import { createSocket, type Socket } from 'node:dgram';
import { decode, encode, icrc, ROCE_PORT, type RocePacket } from './roce-packet.ts';

const CM_QKEY = 0x80010000;
const MTU = 1024;
const WAIT_MS = 5000;

export interface CmReply {
  readonly kind: 'rep' | 'rej';
  readonly reason: number;
  /** Consumer's private data. */
  readonly privateData: Buffer;
  readonly qpn: number;
  readonly psn: number;
  readonly remoteId: number;
}

interface Waiter<T> {
  readonly accept: (value: T) => boolean;
  readonly resolve: (value: T) => void;
}

/** Values that arrive, and those who wait for one; each await is bounded in time. */
class Mailbox<T> {
  readonly #held: T[] = [];
  readonly #waiters: Waiter<T>[] = [];

  put(value: T): void {
    const index = this.#waiters.findIndex((w) => w.accept(value));
    if (index < 0) this.#held.push(value);
    else this.#waiters.splice(index, 1)[0]?.resolve(value);
  }

  take(what: string, accept: (value: T) => boolean = () => true, ms = WAIT_MS): Promise<T> {
    const index = this.#held.findIndex(accept);
    if (index >= 0) return Promise.resolve(this.#held.splice(index, 1)[0] as T);
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiters.splice(this.#waiters.indexOf(waiter), 1);
        reject(new Error(`nothing came within ${ms} ms: ${what}`));
      }, ms);
      const waiter = {
        accept,
        resolve: (value: T): void => {
          clearTimeout(timer);
          resolve(value);
        },
      };
      this.#waiters.push(waiter);
    });
  }
}

export class RocePeer {
  readonly responses = new Mailbox<Buffer>();
  readonly acks = new Mailbox<RocePacket>();
  readonly #cm = new Mailbox<{ readonly attribute: number; readonly mad: Buffer }>();
  readonly #memory = new Map<number, Buffer>();
  readonly #socket: Socket;
  readonly #local: string;
  readonly #remote: string;
  qpn = 0x100 + Math.floor(Math.random() * 0xfff000);
  peerQpn = 0;
  txPsn = 0; // the target's REP says
  rxPsn = Math.floor(Math.random() * 0xffffff);
  #msn = 0;
  #localId = Math.floor(Math.random() * 0xffffffff) >>> 0;
  #remoteId = 0;
  #cmPsn = 0;
  #nextKey = 0x1000;
  #write: { buffer: Buffer; at: number } | undefined;
  #partial: Buffer[] = [];

  private constructor(socket: Socket, local: string, remote: string) {
    this.#socket = socket;
    this.#local = local;
    this.#remote = remote;
    socket.on('message', (datagram) => {
      this.#receive(decode(datagram));
    });
  }

  static async open(local: string, remote: string): Promise<RocePeer> {
    const socket = createSocket('udp4');
    socket.on('error', () => undefined);
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject);
      socket.bind(ROCE_PORT, local, () => {
        socket.off('error', reject);
        resolve();
      });
    });
    return new RocePeer(socket, local, remote);
  }

  async close(): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#socket.close(() => {
        resolve();
      });
    });
  }

  // ---- Packets

  /** Any bytes as they are. */
  raw(datagram: Buffer): void {
    this.#socket.send(datagram, ROCE_PORT, this.#remote);
  }

  /** BTH .. pad with a correct ICRC (or a wrong one). */
  seal(body: Buffer, error = 0): Buffer {
    const crc = Buffer.alloc(4);
    crc.writeUInt32LE((icrc(body, this.#local, ROCE_PORT, this.#remote) ^ error) >>> 0);
    return Buffer.concat([body, crc]);
  }

  packet(fields: Parameters<typeof encode>[0]): void {
    this.raw(this.seal(encode(fields)));
  }

  nextPsn(count = 1): number {
    const psn = this.txPsn;
    this.txPsn = (this.txPsn + count) & 0xffffff;
    return psn;
  }

  /** One SEND message, split by the path MTU. */
  send(message: Buffer): void {
    const count = Math.max(1, Math.ceil(message.length / MTU));
    for (let i = 0; i < count; i++) {
      const last = i === count - 1;
      const opcode = count === 1 ? 0x04 : i === 0 ? 0x00 : last ? 0x02 : 0x01;
      const payload = message.subarray(i * MTU, (i + 1) * MTU);
      this.packet({ opcode, qpn: this.peerQpn, psn: this.nextPsn(), ackRequest: last, payload });
    }
  }

  register(buffer: Buffer): number {
    const key = this.#nextKey++;
    this.#memory.set(key, buffer);
    return key;
  }

  // ---- NVMe

  /** Sends a capsule and waits for the response with its CID. */
  async command(sqe: Buffer, inCapsule: Buffer = Buffer.alloc(0)): Promise<Buffer> {
    this.send(Buffer.concat([sqe, inCapsule]));
    const cid = sqe.readUInt16LE(2);
    return this.responses.take(`response to command ${cid}`, (r) => r.readUInt16LE(12) === cid);
  }

  // ---- Connection management

  async connect(port: number, nvmePrivateData: Buffer, initiatorDepth = 0): Promise<CmReply> {
    const mad = this.#mad(0x10);
    const req = mad.subarray(24);
    req.writeUInt32BE(this.#localId, 0);
    req.writeBigUInt64BE(0x0000000001060000n | BigInt(port), 8);
    req.writeUInt32BE(0x02000000, 16);
    req.writeUInt32BE(this.#localId, 20);
    req.writeUInt32BE(((this.qpn << 8) | 16) >>> 0, 32);
    req.writeUInt32BE(initiatorDepth, 36);
    req.writeUInt32BE(0xa0 | 1, 40);
    req.writeUInt32BE(((this.rxPsn << 8) | 0xa7) >>> 0, 44);
    req.writeUInt16BE(0xffff, 48);
    req.writeUInt16BE(0x37f0, 50);
    req.writeUInt32BE(0xffffffff, 52);
    for (const [at, address] of [
      [56, this.#local],
      [72, this.#remote],
    ] as const) {
      req.writeUInt16BE(0xffff, at + 10);
      req.set(address.split('.').map(Number), at + 12);
    }
    req.writeUInt32BE(0x00400098, 92);
    const consumer = req.subarray(140);
    consumer.writeUInt8(0x40, 1);
    consumer.writeUInt16BE(0x9000, 2);
    consumer.set(this.#local.split('.').map(Number), 16);
    consumer.set(this.#remote.split('.').map(Number), 32);
    consumer.set(nvmePrivateData, 36);
    this.#sendMad(mad);
    const answer = await this.#cm.take(
      'REP or REJ',
      (m) => m.attribute === 0x13 || m.attribute === 0x12,
    );
    const body = answer.mad.subarray(24);
    if (answer.attribute === 0x12) {
      const reply = { kind: 'rej', reason: body.readUInt16BE(10) } as const;
      return { ...reply, privateData: body.subarray(84, 232), qpn: 0, psn: 0, remoteId: 0 };
    }
    this.#remoteId = body.readUInt32BE(0);
    this.peerQpn = body.readUInt32BE(12) >>> 8;
    this.txPsn = body.readUInt32BE(20) >>> 8;
    const rtu = this.#mad(0x14);
    rtu.writeUInt32BE(this.#localId, 24);
    rtu.writeUInt32BE(this.#remoteId, 28);
    this.#sendMad(rtu);
    const privateData = body.subarray(36, 232);
    return {
      kind: 'rep',
      reason: 0,
      privateData,
      qpn: this.peerQpn,
      psn: this.txPsn,
      remoteId: this.#remoteId,
    };
  }

  /** DREQ, and its DREP. */
  async disconnect(): Promise<void> {
    const mad = this.#mad(0x15);
    mad.writeUInt32BE(this.#localId, 24);
    mad.writeUInt32BE(this.#remoteId, 28);
    mad.writeUInt32BE((this.peerQpn << 8) >>> 0, 32);
    this.#sendMad(mad);
    await this.#cm.take('DREP', (m) => m.attribute === 0x16);
  }

  /** Resolves when the target ends the connection. */
  async disconnected(ms = WAIT_MS): Promise<void> {
    await this.#cm.take('DREQ from the target', (m) => m.attribute === 0x15, ms);
  }

  #mad(attribute: number): Buffer {
    const mad = Buffer.alloc(256);
    mad.writeUInt32BE(0x01070203, 0);
    mad.writeUInt32BE(this.#localId, 12);
    mad.writeUInt16BE(attribute, 16);
    return mad;
  }

  #sendMad(mad: Buffer): void {
    const psn = this.#cmPsn++;
    const deth = { qkey: CM_QKEY, qpn: 1 };
    this.packet({ opcode: 0x64, qpn: 1, psn, ackRequest: false, deth, payload: mad });
  }

  #receive(packet: RocePacket): void {
    if (packet.qpn === 1) {
      this.#receiveMad(Buffer.from(packet.payload));
      return;
    }
    if (packet.qpn !== this.qpn) return;
    if (packet.opcode >= 0x0d && packet.opcode <= 0x12) {
      this.acks.put(packet);
      return;
    }
    if (packet.psn !== this.rxPsn) return; // a repetition
    this.rxPsn = (this.rxPsn + 1) & 0xffffff;
    if (packet.opcode === 0x0c) this.#serveRead(packet);
    else if (packet.opcode >= 0x06 && packet.opcode <= 0x0b) this.#takeWrite(packet);
    else this.#takeSend(packet);
    if (packet.ackRequest && packet.opcode !== 0x0c) {
      const aeth = { syndrome: 0x1f, msn: this.#msn };
      this.packet({ opcode: 0x11, qpn: this.peerQpn, psn: packet.psn, ackRequest: false, aeth });
    }
  }

  #receiveMad(mad: Buffer): void {
    const attribute = mad.readUInt16BE(16);
    if (attribute === 0x15) {
      const drep = this.#mad(0x16);
      mad.copy(drep, 8, 8, 16);
      drep.writeUInt32BE(this.#localId, 24);
      drep.writeUInt32BE(mad.readUInt32BE(24), 28);
      this.#sendMad(drep);
    }
    this.#cm.put({ attribute, mad });
  }

  #serveRead(packet: RocePacket): void {
    const { va, rkey, length } = packet.reth ?? { va: 0n, rkey: 0, length: 0 };
    const source = this.#memory.get(rkey);
    if (!source) return;
    this.#msn++;
    const data = source.subarray(Number(va), Number(va) + length);
    const count = Math.max(1, Math.ceil(length / MTU));
    this.rxPsn = (packet.psn + count) & 0xffffff;
    for (let i = 0; i < count; i++) {
      const last = i === count - 1;
      const opcode = count === 1 ? 0x10 : i === 0 ? 0x0d : last ? 0x0f : 0x0e;
      this.packet({
        opcode,
        qpn: this.peerQpn,
        psn: (packet.psn + i) & 0xffffff,
        ackRequest: false,
        ...(opcode === 0x0e ? {} : { aeth: { syndrome: 0x1f, msn: this.#msn } }),
        payload: data.subarray(i * MTU, (i + 1) * MTU),
      });
    }
  }

  #takeWrite(packet: RocePacket): void {
    if (packet.reth) {
      const buffer = this.#memory.get(packet.reth.rkey);
      this.#write = buffer ? { buffer, at: Number(packet.reth.va) } : undefined;
    }
    if (this.#write) {
      packet.payload.copy(this.#write.buffer, this.#write.at);
      this.#write.at += packet.payload.length;
    }
    if (packet.opcode !== 0x06 && packet.opcode !== 0x07) this.#msn++;
  }

  #takeSend(packet: RocePacket): void {
    this.#partial.push(Buffer.from(packet.payload));
    if (packet.opcode === 0x00 || packet.opcode === 0x01) return;
    this.#msn++;
    const message = Buffer.concat(this.#partial);
    this.#partial = [];
    this.responses.put(message);
  }
}
