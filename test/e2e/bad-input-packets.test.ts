/**
 * Packets no honest host sends, against a running target: each costs at most its sender, and a host that behaves keeps
 * being served.
 */
import { expect } from 'chai';
import { bringUpAdmin, bringUpIo, keyedSgl, sqe, statusOf } from '../support/nvme-host.ts';
import { loopbackAddress, startTarget, type RunningTarget } from '../support/processes.ts';
import { encode } from '../support/roce-packet.ts';
import type { RocePeer } from '../support/roce-peer.ts';

const PORT = 4420;

describe('malformed packets', function () {
  this.timeout(30_000);
  let target: RunningTarget;
  let admin: RocePeer;
  let good: RocePeer;
  let evil: RocePeer;
  let evilAdmin: RocePeer;

  /** The honest host writes and reads back a block. */
  async function goodHostIsServed(): Promise<void> {
    const out = Buffer.alloc(4096, Math.floor(Math.random() * 255));
    const back = Buffer.alloc(4096);
    const write = keyedSgl(0n, 4096, good.register(out));
    const read = keyedSgl(0n, 4096, good.register(back));
    const cdw = [0, 0, 7];
    expect(statusOf(await good.command(sqe({ opcode: 1, nsid: 1, cdw, sgl: write })))).to.equal(0);
    expect(statusOf(await good.command(sqe({ opcode: 2, nsid: 1, cdw, sgl: read })))).to.equal(0);
    expect(back.equals(out)).to.equal(true);
  }

  beforeEach(async () => {
    target = await startTarget(['--export', 'memory:16MiB']);
    const first = await bringUpAdmin(loopbackAddress(), target.address, PORT, target.nqn);
    admin = first.peer;
    good = await bringUpIo(loopbackAddress(), target.address, PORT, target.nqn, first.cntlid);
    const second = await bringUpAdmin(loopbackAddress(), target.address, PORT, target.nqn);
    evilAdmin = second.peer;
    evil = await bringUpIo(loopbackAddress(), target.address, PORT, target.nqn, second.cntlid);
  });

  afterEach(async () => {
    for (const peer of [admin, good, evil, evilAdmin]) await peer.close();
    const end = await target.stop();
    expect(end.code, end.stderr).to.equal(0);
  });

  it('a SEND cut at every length is dropped', async () => {
    const body = encode({
      opcode: 0x04,
      qpn: evil.peerQpn,
      psn: evil.txPsn,
      ackRequest: true,
      payload: sqe({ opcode: 0, nsid: 1 }),
    });
    const whole = evil.seal(body);
    for (let length = 0; length < whole.length; length++) evil.raw(whole.subarray(0, length));
    await goodHostIsServed();
    // None of them was taken: the queue pair still expects this PSN.
    expect(statusOf(await evil.command(sqe({ opcode: 0, nsid: 1 })))).to.equal(0);
  });

  it('a wrong ICRC is dropped and counts for nothing', async () => {
    const body = encode({
      opcode: 0x04,
      qpn: evil.peerQpn,
      psn: evil.txPsn,
      ackRequest: true,
      payload: sqe({ opcode: 0, nsid: 1 }),
    });
    for (const error of [0x80000000, 0xffffffff, 0x00010000]) evil.raw(evil.seal(body, error));
    await goodHostIsServed();
    expect(statusOf(await evil.command(sqe({ opcode: 0, nsid: 1 })))).to.equal(0);
  });

  it('unknown opcodes, other transports and wrong versions are dropped', async () => {
    for (const opcode of [0x13, 0x14, 0x15, 0x18, 0x1f, 0x20, 0x40, 0x65, 0x7f, 0x81, 0xff]) {
      const fields = { qpn: evil.peerQpn, psn: 0x123456, ackRequest: true };
      evil.packet({ opcode, ...fields, payload: Buffer.alloc(64) });
    }
    const body = encode({ opcode: 4, qpn: evil.peerQpn, psn: evil.txPsn, ackRequest: true });
    body[1] = 0x01; // TVer 1
    evil.raw(evil.seal(body));
    body[1] = 0;
    body[2] = 0x12; // P_Key
    evil.raw(evil.seal(body));
    await goodHostIsServed();
    expect(statusOf(await evil.command(sqe({ opcode: 0, nsid: 1 })))).to.equal(0);
  });

  it('queue pair numbers that are not there, and those of somebody else, do nothing', async () => {
    const payload = sqe({ opcode: 1, nsid: 1 });
    for (const qpn of [0, 2, 0xffffff, (evil.peerQpn + 1) & 0xffffff, evil.peerQpn ^ 0x800000]) {
      evil.packet({ opcode: 4, qpn, psn: evil.txPsn, ackRequest: true, payload });
    }
    // Right number and PSN, but from an address that is not the peer's.
    evil.packet({ opcode: 4, qpn: good.peerQpn, psn: good.txPsn, ackRequest: true, payload });
    await goodHostIsServed();
  });

  it('READ and WRITE of the target memory are refused and end only that queue pair', async () => {
    evil.packet({
      opcode: 0x0a,
      qpn: evil.peerQpn,
      psn: evil.nextPsn(),
      ackRequest: true,
      reth: { va: 0n, rkey: 0x1234, length: 64 },
      payload: Buffer.alloc(64),
    });
    const nak = await evil.acks.take('NAK', (p) => (p.aeth?.syndrome ?? 0) >= 0x60);
    expect(nak.aeth?.syndrome).to.be.oneOf([0x61, 0x62]);
    await goodHostIsServed();
  });

  it('a capsule shorter than an SQE, or longer than a receive buffer, closes the queue', async () => {
    evil.send(Buffer.alloc(63));
    await evil.disconnected();
    await goodHostIsServed();
    evilAdmin.send(Buffer.alloc(64 * 1024));
    await Promise.race([
      evilAdmin.acks.take('NAK', (p) => (p.aeth?.syndrome ?? 0) >= 0x60),
      evilAdmin.disconnected(),
    ]);
    await goodHostIsServed();
  });

  it('a write from an unknown key at an address that wraps around disturbs nobody else', async () => {
    const data = Buffer.alloc(4096);
    const key = evil.register(data);
    // The peer stays silent to a READ with a key it does not know: the target must not wait for it alone.
    const wrong = keyedSgl(0xffff_ffff_ffff_f800n, 4096, key ^ 0x55);
    evil.send(sqe({ opcode: 1, nsid: 1, cdw: [0, 0, 7], sgl: wrong }));
    await goodHostIsServed();
  });

  it('datagrams of any junk, to QP1 as well', async () => {
    let seed = 12345;
    const random = (): number => (seed = (Math.imul(seed, 1103515245) + 12345) >>> 0) >>> 16;
    for (let i = 0; i < 2000; i++) {
      const junk = Buffer.from(Array.from({ length: random() % 400 }, () => random() & 255));
      if (i % 2 && junk.length > 24) {
        junk[0] = 0x64;
        junk.writeUInt32BE(1, 4);
        evil.raw(evil.seal(junk));
      } else {
        evil.raw(junk);
      }
    }
    await goodHostIsServed();
  });
});
