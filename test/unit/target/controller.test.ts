import { expect } from 'chai';
import { Cap, Csts, PropertyOffset } from '../../../native/wire/registers.ts';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { Rig, settle } from './support.ts';
import type { HostQueue } from './support.ts';

function bytes(value: bigint): Buffer {
  const buffer = Buffer.alloc(8);
  buffer.writeBigUInt64LE(value);
  return buffer;
}

async function csts(admin: HostQueue) {
  return Csts.decode(bytes((await admin.getProperty(PropertyOffset.csts)).result));
}

describe('controller properties', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start({
      ports: [{ address: '127.0.0.1', queueDepth: 64 }],
      subsystems: [{ nqn: 'nqn.2024-01.com.example:disk', namespaces: [{ memory: '1M' }] }],
    });
    admin = await rig.queue(0);
    await admin.connect();
  });
  afterEach(() => rig.stop());

  it('say what the controller can do', async () => {
    const cap = await admin.getProperty(PropertyOffset.cap, 1);
    expect(cap.status).to.equal('success');
    expect(Cap.decode(bytes(cap.result))).to.include({
      mqes: 63,
      cqr: true,
      mpsmin: 0,
      mpsmax: 0,
      css: 0b0100_0001,
      crms: 1,
    });
    expect((await admin.getProperty(PropertyOffset.vs)).result).to.equal(0x0002_0000n);
    const crto = await admin.getProperty(PropertyOffset.crto);
    expect(crto.result).to.equal(BigInt(Cap.decode(bytes(cap.result)).to));
    expect((await admin.getProperty(PropertyOffset.cc)).result).to.equal(0n);
  });

  it('of another size, or that do not exist, are refused with the field', async () => {
    for (const [offset, size] of [
      [PropertyOffset.cap, 0],
      [PropertyOffset.vs, 1],
      [PropertyOffset.cc, 1],
      [PropertyOffset.csts, 7],
      [PropertyOffset.nssr, 0],
      [0x04, 0],
      [0x18, 0],
      [0x1000, 0],
      [0xffff_ffff, 0],
    ] as const) {
      const answer = await admin.getProperty(offset, size);
      expect(answer.status, `${offset}`).to.equal('invalidField');
      expect(answer.dnr).to.equal(true);
    }
    for (const offset of [PropertyOffset.cap, PropertyOffset.vs, PropertyOffset.csts, 0x24]) {
      expect((await admin.setProperty(offset, 0, offset === 0 ? 1 : 0)).status).to.equal(
        'invalidField',
      );
    }
    expect((await admin.setProperty(PropertyOffset.cc, 1, 1)).status).to.equal('invalidField');
  });

  it('take the controller from disabled to ready and back', async () => {
    expect(await csts(admin)).to.include({ rdy: false, cfs: false, shst: 0 });
    await admin.enable();
    expect(await csts(admin)).to.include({ rdy: true, cfs: false });
    expect((await admin.getProperty(PropertyOffset.cc)).result).to.equal(0x460061n);
    await admin.setProperty(PropertyOffset.cc, 0x460060);
    expect(await csts(admin)).to.include({ rdy: false, cfs: false });
  });

  for (const [what, cc] of [
    ['CC.CSS 1', 0x460011],
    ['CC.CSS 7', 0x460071],
    ['CC.MPS 1', 0x4600e1],
    ['CC.AMS 1', 0x460861],
    ['CC.IOSQES 5', 0x450061],
    ['CC.IOCQES 0', 0x060061],
  ] as const) {
    it(`report a fatal status for ${what}, until the host disables`, async () => {
      await admin.setProperty(PropertyOffset.cc, cc);
      expect(await csts(admin)).to.include({ rdy: false, cfs: true });
      expect((await admin.identify({ cns: 1 })).status).to.equal('commandSequence');
      await admin.setProperty(PropertyOffset.cc, cc & ~1);
      await settle();
      expect(await csts(admin)).to.include({ rdy: false, cfs: false });
      await admin.enable();
      expect(await csts(admin)).to.include({ rdy: true });
    });
  }

  it('allow CC.CSS 0 and 6', async () => {
    await admin.setProperty(PropertyOffset.cc, 0x460001);
    expect(await csts(admin)).to.include({ rdy: true });
  });

  it('report a shutdown as complete, and allow enabling after it', async () => {
    await admin.enable();
    await admin.setProperty(PropertyOffset.cc, 0x464061);
    expect(await csts(admin)).to.include({ shst: 2 });
    await admin.setProperty(PropertyOffset.cc, 0x460060);
    await settle();
    expect(await csts(admin)).to.include({ shst: 0, rdy: false });
    await admin.enable();
    expect(await csts(admin)).to.include({ shst: 0, rdy: true });
  });

  it('belong to the admin queue', async () => {
    await admin.enable();
    const queue = await rig.queue(1, { hsqsize: 63 });
    await queue.connect({ qid: 1, sqsize: 63 }, { cntlid: 1 });
    expect((await queue.getProperty(PropertyOffset.csts)).status).to.equal('invalidOpcode');
    expect((await queue.setProperty(PropertyOffset.cc, 0)).status).to.equal('invalidOpcode');
  });
});

describe('controller reset and end', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start();
  });
  afterEach(() => rig.stop());

  it('closes the I/O queues on reset, and is not ready before they are gone', async () => {
    const admin = await rig.host();
    const io = await rig.ioQueue(1);
    let held: number | undefined;
    rig.door.onCloseQueue = (queue) => {
      held = queue;
    };
    await admin.setProperty(PropertyOffset.cc, 0x460060);
    expect(held).to.equal(io.id);
    expect(await csts(admin)).to.include({ rdy: true });
    await admin.enable();
    rig.door.onCloseQueue = undefined;
    rig.door.endQueue(io.id, 'drained');
    await settle();
    expect(await csts(admin)).to.include({ rdy: true });
    expect((await admin.identify({ cns: 1 })).status).to.equal('success');
    expect(rig.target.controllers[0]?.queues).to.deep.equal([]);
  });

  it('returns settings to their defaults on reset', async () => {
    const admin = await rig.host();
    await admin.setFeature(0x07, 0);
    await admin.setFeature(0x0b, 0x100);
    const event = await admin.requestEvent();
    await admin.setProperty(PropertyOffset.cc, 0x460060);
    await settle();
    expect(admin.answered(event)?.status).to.equal('abortRequested');
    await admin.enable();
    expect((await admin.getFeature(0x07)).result).to.equal(0x003f_003fn);
    expect((await admin.getFeature(0x0b)).result).to.equal(0n);
  });

  it('ends everything when the admin queue goes', async () => {
    const admin = await rig.host();
    await rig.ioQueue(1, 1);
    await rig.ioQueue(1, 2);
    await admin.disconnect();
    expect(rig.target.controllers).to.deep.equal([]);
    expect(rig.door.queues.size).to.equal(0);
    expect(rig.events.map(([name]) => name)).to.deep.equal([
      'controllerCreated',
      'controllerDeleted',
    ]);
  });

  it('survives both ends disconnecting at once', async () => {
    const admin = await rig.host();
    await rig.ioQueue(1);
    rig.door.endQueue(admin.id, 'host');
    const closing = rig.target.close();
    await closing;
    expect(rig.door.queues.size).to.equal(0);
  });

  it('ends an I/O queue with Disconnect, and refuses it on the admin queue', async () => {
    const admin = await rig.host();
    const io = await rig.ioQueue(1);
    const disconnect = { opcode: 0x7f, psdt: 1, nsid: 0x08 };
    expect((await admin.command(0x7f, disconnect)).status).to.equal('disconnectInvalidQueueType');
    expect((await io.command(0x7f, { ...disconnect, cdw10: 1 })).status).to.equal(
      'connectIncompatible',
    );
    expect((await io.command(0x7f, disconnect)).status).to.equal('success');
    expect(io.open).to.equal(false);
    expect(admin.open).to.equal(true);
    await rig.ioQueue(1);
  });

  it('does not need I/O queue sizes on a discovery controller', async () => {
    const admin = await rig.queue(0);
    await admin.connect({}, { subnqn: DISCOVERY_NQN });
    await admin.setProperty(PropertyOffset.cc, 1);
    expect(await csts(admin)).to.include({ rdy: true, cfs: false });
  });
});
