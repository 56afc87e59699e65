/**
 * Capsules no honest host sends, each with the status the specification gives it, while another host keeps working.
 * Status codes are SCT << 8 | SC.
 */
import { expect } from 'chai';
import {
  bringUpAdmin,
  bringUpIo,
  connectData,
  connectPrivateData,
  connectSqe,
  fabricsConnect,
  inCapsuleSgl,
  keyedSgl,
  propertyGet,
  sqe,
  statusOf,
  type ConnectFields,
  type SqeFields,
} from '../support/nvme-host.ts';
import { loopbackAddress, startTarget, type RunningTarget } from '../support/processes.ts';
import { RocePeer } from '../support/roce-peer.ts';

const PORT = 4420;
const BLOCKS = (16 << 20) / 512;

interface Row {
  readonly name: string;
  readonly fields: SqeFields;
  readonly status: number | readonly number[];
  readonly inCapsule?: Buffer;
}

/** A read of 4 KiB with one thing wrong. */
function read(change: Partial<SqeFields>, key: number): SqeFields {
  return { opcode: 2, nsid: 1, cdw: [0, 0, 7], sgl: keyedSgl(0n, 4096, key), ...change };
}

function ioRows(key: number): Row[] {
  const plain = (type: number): Buffer => keyedSgl(0n, 4096, key, type);
  const rows: Row[] = [
    { name: 'PSDT 00', fields: read({ flags: 0x00 }, key), status: 0x002 },
    { name: 'PSDT 10', fields: read({ flags: 0x80 }, key), status: 0x002 },
    { name: 'fused first', fields: read({ flags: 0x41 }, key), status: 0x002 },
    { name: 'fused second', fields: read({ flags: 0x42 }, key), status: 0x002 },
    { name: 'NSID 0', fields: read({ nsid: 0 }, key), status: 0x00b },
    { name: 'NSID not attached', fields: read({ nsid: 2 }, key), status: 0x00b },
    { name: 'NSID FFFFFFFFh', fields: read({ nsid: 0xffffffff }, key), status: 0x00b },
    { name: 'reserved opcode', fields: read({ opcode: 0x7e }, key), status: 0x001 },
    { name: 'vendor opcode', fields: read({ opcode: 0x80 }, key), status: 0x001 },
    { name: 'last block crossed', fields: read({ cdw: [BLOCKS - 7, 0, 7] }, key), status: 0x080 },
    { name: 'SLBA at the end', fields: read({ cdw: [BLOCKS, 0, 7] }, key), status: 0x080 },
    {
      name: 'SLBA + NLB wraps 2^64',
      fields: read({ cdw: [0xfffffffc, 0xffffffff, 7] }, key),
      status: 0x080,
    },
    {
      name: 'SGL shorter than the data',
      fields: read({ sgl: keyedSgl(0n, 2048, key) }, key),
      status: 0x00f,
    },
    { name: 'SGL of length 0', fields: read({ sgl: keyedSgl(0n, 0, key) }, key), status: 0x00f },
    {
      name: 'in-capsule SGL for a read',
      fields: read({ sgl: inCapsuleSgl(0n, 4096) }, key),
      status: [0x00d, 0x011, 0x002, 0x010],
    },
    {
      name: 'in-capsule offset beyond the capsule',
      fields: read({ opcode: 1, sgl: inCapsuleSgl(4096n, 4096) }, key),
      status: [0x016, 0x00f],
    },
    {
      name: 'in-capsule offset near 2^64',
      fields: read({ opcode: 1, sgl: inCapsuleSgl(0xffff_ffff_ffff_fe00n, 4096) }, key),
      status: [0x016, 0x00f],
    },
    {
      name: 'in-capsule data that did not come',
      fields: read({ opcode: 1, sgl: inCapsuleSgl(0n, 4096) }, key),
      status: [0x016, 0x00f],
    },
    {
      name: 'write of 10 blocks with 8 in the capsule',
      fields: read({ opcode: 1, cdw: [0, 0, 9], sgl: inCapsuleSgl(0n, 4096) }, key),
      status: 0x00f,
      inCapsule: Buffer.alloc(4096),
    },
    {
      name: 'DSM with fewer ranges than it says',
      fields: { opcode: 9, nsid: 1, cdw: [9, 4], sgl: inCapsuleSgl(0n, 160 - 16) },
      status: 0x00f,
      inCapsule: Buffer.alloc(144),
    },
  ];
  for (let type = 0; type < 256; type++) {
    if (type === 0x40 || type === 0x4f || type === 0x01) continue;
    rows.push({
      name: `SGL type ${type.toString(16)}`,
      fields: read({ sgl: plain(type) }, key),
      status: [0x011, 0x00d, 0x002],
    });
  }
  return rows;
}

describe('malformed capsules', function () {
  this.timeout(60_000);
  let target: RunningTarget;
  let admin: RocePeer;
  let io: RocePeer;
  let cntlid: number;

  before(async () => {
    target = await startTarget(['--export', 'memory:16MiB']);
    const first = await bringUpAdmin(loopbackAddress(), target.address, PORT, target.nqn);
    admin = first.peer;
    cntlid = first.cntlid;
    io = await bringUpIo(loopbackAddress(), target.address, PORT, target.nqn, cntlid);
  });

  after(async () => {
    await io.close();
    await admin.close();
    const end = await target.stop();
    expect(end.code, end.stderr).to.equal(0);
  });

  async function ioWorks(): Promise<void> {
    const back = Buffer.alloc(4096, 1);
    const fields = read({}, io.register(back));
    expect(statusOf(await io.command(sqe(fields)))).to.equal(0);
  }

  it('I/O commands with one field wrong', async () => {
    const key = io.register(Buffer.alloc(65536));
    const wrong: string[] = [];
    for (const row of ioRows(key)) {
      const status = statusOf(await io.command(sqe(row.fields), row.inCapsule));
      const allowed = typeof row.status === 'number' ? [row.status] : row.status;
      if (!allowed.includes(status)) wrong.push(`${row.name}: ${status.toString(16)}`);
    }
    expect(wrong).to.deep.equal([]);
    await ioWorks();
  });

  it('a read longer than the transfer limit', async () => {
    const identify = Buffer.alloc(4096);
    const sgl = keyedSgl(0n, 4096, admin.register(identify));
    expect(statusOf(await admin.command(sqe({ opcode: 6, cdw: [1], sgl })))).to.equal(0);
    const mdts = identify.readUInt8(77);
    if (mdts === 0) return;
    const blocks = (4096 << mdts) / 512 + 1;
    const long = keyedSgl(0n, blocks * 512, io.register(Buffer.alloc(blocks * 512)));
    const status = statusOf(await io.command(sqe(read({ cdw: [0, 0, blocks - 1], sgl: long }, 0))));
    expect(status).to.equal(0x002);
    await ioWorks();
  });

  it('admin commands the controller does not have, and NSIDs where none belongs', async () => {
    expect(statusOf(await admin.command(sqe({ opcode: 0x7e })))).to.equal(0x001);
    expect(statusOf(await admin.command(sqe({ opcode: 0x18, nsid: 1 })))).to.equal(0x002);
    expect(statusOf(await admin.command(sqe({ opcode: 0x0a, cdw: [0xfe] })))).to.equal(0x002);
    expect(statusOf(await admin.command(sqe({ opcode: 0x06, cdw: [0xfe] })))).to.equal(0x002);
  });

  it('properties of unknown offset or wrong size', async () => {
    for (const [offset, eight] of [
      [0x00, false],
      [0x14, true],
      [0x04, true],
      [0x99, false],
      [0x1000, true],
      [0xfffffffc, false],
    ] as const) {
      const name = `offset ${offset.toString(16)} ${eight ? 8 : 4} bytes`;
      expect(statusOf(await propertyGet(admin, offset, eight)), name).to.equal(0x002);
    }
    expect(statusOf(await propertyGet(admin, 0x00, true))).to.equal(0);
  });

  describe('Connect', () => {
    interface ConnectRow {
      readonly name: string;
      readonly fields: ConnectFields;
      readonly status: number;
      /** IPO | IATTR << 16 of the answer. */
      readonly parameter?: number;
    }
    const long = Buffer.alloc(256, 'n');
    Buffer.from('nqn.2014-08.org.nvmexpress:').copy(long);
    const rows: ConnectRow[] = [
      { name: 'RECFMT 1', fields: { recfmt: 1 }, status: 0x180 },
      { name: 'empty host NQN', fields: { hostnqn: '' }, status: 0x182, parameter: 0x10200 },
      {
        name: 'unterminated host NQN',
        fields: { hostnqn: long },
        status: 0x182,
        parameter: 0x10200,
      },
      {
        name: 'host NQN without nqn.',
        fields: { hostnqn: 'nope.2014-08.org.nvmexpress:a' },
        status: 0x182,
        parameter: 0x10200,
      },
      {
        name: 'host NQN of month 13',
        fields: { hostnqn: 'nqn.2014-13.org.nvmexpress:a' },
        status: 0x182,
        parameter: 0x10200,
      },
      { name: 'empty subsystem NQN', fields: { subnqn: '' }, status: 0x182, parameter: 0x10100 },
      {
        name: 'unterminated subsystem NQN',
        fields: { subnqn: long },
        status: 0x182,
        parameter: 0x10100,
      },
      {
        name: 'unknown subsystem NQN',
        fields: { subnqn: 'nqn.2026-11.io.nvmeof:nobody' },
        status: 0x182,
        parameter: 0x10100,
      },
      {
        name: 'host identifier 0',
        fields: { hostid: Buffer.alloc(16) },
        status: 0x182,
        parameter: 0x10000,
      },
      { name: 'CNTLID not FFFFh', fields: { cntlid: 1 }, status: 0x182, parameter: 0x10010 },
      { name: 'SQSIZE 0', fields: { sqsize: 0 }, status: 0x182, parameter: 44 },
      { name: 'SQSIZE 65535', fields: { sqsize: 65535 }, status: 0x182, parameter: 44 },
      {
        name: 'SQSIZE beyond the connection',
        fields: { sqsize: 32 },
        status: 0x182,
        parameter: 44,
      },
    ];
    for (const row of rows) {
      it(row.name, async () => {
        const peer = await RocePeer.open(loopbackAddress(), target.address);
        const reply = await peer.connect(PORT, connectPrivateData(0, 32));
        expect(reply.kind).to.equal('rep');
        const answer = await fabricsConnect(peer, { subnqn: target.nqn, ...row.fields });
        expect(statusOf(answer).toString(16)).to.equal(row.status.toString(16));
        if (row.parameter !== undefined) {
          expect(answer.readUInt32LE(0).toString(16)).to.equal(row.parameter.toString(16));
        }
        await peer.close();
        await ioWorks();
      });
    }

    it('an I/O queue of a controller that is not there, or is there twice', async () => {
      for (const [fields, text] of [
        [{ qid: 1, cntlid: 0xeee }, 'unknown CNTLID'],
        [{ qid: 1, cntlid }, 'QID in use'],
        [{ qid: 200, cntlid }, 'QID beyond the number of queues'],
      ] as const) {
        const peer = await RocePeer.open(loopbackAddress(), target.address);
        const reply = await peer.connect(PORT, connectPrivateData(fields.qid, 32, fields.cntlid));
        if (reply.kind === 'rep') {
          const answer = await fabricsConnect(peer, { subnqn: target.nqn, ...fields });
          expect(statusOf(answer), text).to.be.oneOf([0x182, 0x00c]);
        }
        await peer.close();
      }
      await ioWorks();
    });

    it('commands before Connect get Command Sequence Error', async () => {
      const peer = await RocePeer.open(loopbackAddress(), target.address);
      await peer.connect(PORT, connectPrivateData(0, 32));
      expect(statusOf(await peer.command(sqe({ opcode: 6, cdw: [1] })))).to.equal(0x00c);
      expect(statusOf(await propertyGet(peer, 0, true))).to.equal(0x00c);
      await peer.close();
    });

    it('a second Connect on a queue gets Command Sequence Error', async () => {
      const data = connectData({ subnqn: target.nqn });
      const sgl = keyedSgl(0n, 1024, admin.register(data));
      expect(statusOf(await admin.command(connectSqe({}, sgl)))).to.equal(0x00c);
    });

    it('CM private data that is not NVMe/RDMA is rejected with its reason', async () => {
      const cases: [string, Buffer, number][] = [
        [
          'RECFMT 1',
          Buffer.concat([Buffer.from([1, 0]), connectPrivateData(0, 32).subarray(2)]),
          2,
        ],
        ['too short for a queue', connectPrivateData(0, 0x10000 - 1), 4],
      ];
      for (const [name, data, status] of cases) {
        const peer = await RocePeer.open(loopbackAddress(), target.address);
        const reply = await peer.connect(PORT, data);
        expect(reply.kind, name).to.equal('rej');
        expect(reply.reason, name).to.equal(28);
        expect(reply.privateData.readUInt16LE(2), name).to.equal(status);
        await peer.close();
      }
    });

    it('a port nobody listens on is rejected with reason 8', async () => {
      const peer = await RocePeer.open(loopbackAddress(), target.address);
      const reply = await peer.connect(4421, connectPrivateData(0, 32));
      expect(reply.kind).to.equal('rej');
      expect(reply.reason).to.equal(8);
      await peer.close();
    });

    it('a host that offers initiator depth is accepted', async () => {
      const peer = await RocePeer.open(loopbackAddress(), target.address);
      const reply = await peer.connect(PORT, connectPrivateData(0, 32), 1);
      expect(reply.kind).to.equal('rep');
      await peer.close();
    });
  });
});
