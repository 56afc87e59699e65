import { expect } from 'chai';
import { ErrorLogEntry, CommandsSupportedLog } from '../../../native/wire/logs.ts';
import { Sqe } from '../../../native/wire/sqe.ts';
import { Status } from '../../../native/wire/status.ts';
import { ADMIN_COMMANDS, IO_COMMANDS } from '../../../target/commands.ts';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { Rig } from './support.ts';
import type { HostQueue } from './support.ts';

async function lastError(admin: HostQueue) {
  return ErrorLogEntry.decode((await admin.log(0x01, 64)).data);
}

describe('admin commands', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start();
    admin = await rig.host();
  });
  afterEach(() => rig.stop());

  it('have one row per opcode', () => {
    const codes = ADMIN_COMMANDS.map(({ code }) => code);
    expect(new Set(codes).size).to.equal(codes.length);
  });

  it('with an opcode that is not in the table are refused, and show in the error log', async () => {
    const known = new Set(ADMIN_COMMANDS.map(({ code }) => code));
    for (let opcode = 0; opcode < 256; opcode++) {
      if (known.has(opcode) || opcode === 0x7f) continue;
      const answer = await admin.command(opcode);
      expect([answer.status, answer.dnr], `${opcode}`).to.deep.equal(['invalidOpcode', true]);
    }
    const entry = await lastError(admin);
    expect(entry).to.include({ count: 247n, sqid: 0, ploc: 0, opcode: 0xff });
    expect(entry.status & 0x7ff).to.equal(Status.invalidOpcode);
  }).timeout(20_000);

  it('with an unknown Fabrics type are refused', async () => {
    for (const fctype of [0x02, 0x03, 0x05, 0x06, 0x07, 0x09, 0xff]) {
      expect((await admin.command(0x7f, { nsid: fctype })).status).to.equal('invalidOpcode');
    }
    expect(await lastError(admin)).to.include({ ploc: 4 });
  });

  it('with fused bits or another PSDT are refused with their own CID', async () => {
    const event = await admin.requestEvent(7);
    for (const flags of [
      { fuse: 1 },
      { fuse: 2 },
      { fuse: 3 },
      { psdt: 0 },
      { psdt: 2 },
      { psdt: 3 },
    ]) {
      const answer = await admin.identify({ cns: 1, ...flags });
      expect([answer.status, answer.dnr]).to.deep.equal(['invalidField', true]);
    }
    expect(await lastError(admin)).to.include({ ploc: 1, sqid: 0 });
    expect(admin.answered(event)).to.equal(undefined);
  });

  it('that take no NSID are refused with one', async () => {
    for (const nsid of [1, 0xffff_ffff]) {
      expect((await admin.keepAlive({ nsid })).status).to.equal('invalidField');
      expect((await admin.command(0x08, { nsid })).status).to.equal('invalidField');
      expect((await admin.command(0x0c, { nsid })).status).to.equal('invalidField');
      expect(await lastError(admin)).to.include({ ploc: 4, nsid });
    }
  });

  it('whose SGL does not name exactly their data are refused', async () => {
    for (const bytes of [0, 4, 4095, 4097, 8192]) {
      const answer = await admin.identify({ cns: 1 }, bytes);
      expect(answer.status, `${bytes}`).to.equal('sglDataLength');
    }
    expect(await lastError(admin)).to.include({ ploc: 24 });
    expect((await admin.getFeature(0x07, {}, 16)).status).to.equal('sglDataLength');
    expect((await admin.command(0x0c, {}, 64)).status).to.equal('sglDataLength');
  });

  it('whose SGL is of a strange kind are refused', async () => {
    for (let identifier = 0; identifier < 256; identifier++) {
      if (identifier === 0x40 || identifier === 0x4f) continue;
      const sgl1 = new Uint8Array(16);
      sgl1.set([0, 0x10, 0], 8);
      sgl1[15] = identifier;
      const answer = await admin.command(0x06, { cdw10: 1, sgl1 });
      expect(answer.status, identifier.toString(16)).to.equal('sglType');
    }
  }).timeout(20_000);

  it('are refused while the controller is disabled, except Keep Alive', async () => {
    const other = await rig.queue(0);
    await other.connect({ kato: 5000 });
    expect((await other.identify({ cns: 1 })).status).to.equal('commandSequence');
    expect((await other.getFeature(0x07)).status).to.equal('commandSequence');
    expect((await other.keepAlive()).status).to.equal('success');
  });

  it('on an I/O queue are unknown opcodes', async () => {
    const io = await rig.ioQueue(1);
    for (const opcode of [0x06, 0x0a, 0x18, 0x04, 0x0d, 0x19, 0xc0]) {
      const answer = await io.command(opcode, { nsid: 1 });
      expect(answer.status, `${opcode}`).to.equal('invalidOpcode');
    }
    expect(await lastError(admin)).to.include({ sqid: 1, opcode: 0xc0, nsid: 1 });
  });

  it('of discovery are few', async () => {
    const discovery = await rig.host({}, { subnqn: DISCOVERY_NQN });
    expect((await discovery.command(0x08)).status).to.equal('invalidOpcode');
    expect((await discovery.identify({ cns: 1 })).status).to.equal('success');
    expect((await discovery.identify({ cns: 2 })).status).to.equal('invalidField');
    expect((await discovery.log(0x02, 512)).status).to.equal('invalidLogPage');
    expect((await discovery.getFeature(0x07)).status).to.equal('invalidField');
    expect((await discovery.keepAlive()).status).to.equal('success');
  });

  it('stand in the commands-supported log exactly as in the table', async () => {
    const { admin: adminLog, io } = CommandsSupportedLog.decode((await admin.log(0x05, 4096)).data);
    const supported = (list: readonly number[]): number[] =>
      list.flatMap((entry, opcode) => ((entry & 1) === 1 ? [opcode] : []));
    expect(supported(adminLog)).to.deep.equal(
      ADMIN_COMMANDS.map(({ code }) => code).sort((a, b) => a - b),
    );
    expect(supported(io)).to.deep.equal([0x00, 0x01, 0x02, 0x05, 0x08, 0x09, 0x0c]);
    expect(io.flatMap((entry, opcode) => ((entry & 2) === 2 ? [opcode] : []))).to.deep.equal([
      0x01, 0x08, 0x09,
    ]);
    expect(IO_COMMANDS.length).to.equal(7);
  });

  it('that native refused go into the error log', async () => {
    const io = await rig.ioQueue(1);
    const sqe = Sqe.encode({ opcode: 2, psdt: 1, cid: 77, nsid: 1, cdw10: 5, cdw11: 1 });
    const status = Status.lbaOutOfRange | (1 << 14);
    rig.door.emit({ kind: 'ioError', queue: io.id, sqe, status, parameter: 40 });
    const entry = await lastError(admin);
    expect(entry).to.include({
      count: 1n,
      sqid: 1,
      cid: 77,
      status,
      ploc: 40,
      lba: 0x1_0000_0005n,
      nsid: 1,
      opcode: 2,
    });
  });

  it('refused more often than the error log is long leave the newest ones', async () => {
    for (let round = 0; round < 70; round++) await admin.command(0xff, { nsid: round });
    const { data } = await admin.log(0x01, 64 * 64);
    expect(ErrorLogEntry.decode(data)).to.include({ count: 70n, nsid: 69 });
    expect(ErrorLogEntry.decode(data, 63 * 64)).to.include({ count: 7n, nsid: 6 });
  });

  it('of one host do not show in the log of another', async () => {
    await admin.command(0xff);
    const other = await rig.host();
    expect((await lastError(other)).count).to.equal(0n);
  });
});

describe('Abort', () => {
  let rig: Rig;
  let admin: HostQueue;
  const abort = (sqid: number, cid: number) => admin.command(0x08, { cdw10: sqid + cid * 0x10000 });
  beforeEach(async () => {
    rig = await Rig.start();
    admin = await rig.host();
  });
  afterEach(() => rig.stop());

  it('takes an event request back, once', async () => {
    const event = await admin.requestEvent(31);
    expect((await abort(0, 31)).result).to.equal(0n);
    expect(admin.answered(event)?.status).to.equal('abortRequested');
    expect((await abort(0, 31)).result).to.equal(1n);
  });

  it('tells the truth about unknown commands and queues', async () => {
    await admin.requestEvent(31);
    expect((await abort(0, 30)).result).to.equal(1n);
    expect((await abort(1, 31)).result).to.equal(1n);
    expect((await abort(0xffff, 31)).result).to.equal(1n);
  });

  it('asks native about I/O commands', async () => {
    const io = await rig.ioQueue(1);
    rig.door.onAbort = (_queue, cid, operation) => {
      rig.door.endOperation(operation, 0, cid === 5 ? 1 : 0);
    };
    expect((await abort(1, 5)).result).to.equal(0n);
    expect((await abort(1, 6)).result).to.equal(1n);
    expect(rig.door.callsOf('abort').map(({ args }) => args)).to.deep.equal([
      [io.id, 5],
      [io.id, 6],
    ]);
  });

  it('is limited to four at a time, as ACL says', async () => {
    await rig.ioQueue(1);
    const operations: number[] = [];
    rig.door.onAbort = (_queue, _cid, operation) => {
      operations.push(operation);
    };
    const sqe = (cid: number): Uint8Array =>
      Sqe.encode({
        opcode: 8,
        psdt: 1,
        cid,
        sgl1: Uint8Array.of(...new Array<number>(15).fill(0), 0x40),
        cdw10: 1 + cid * 0x10000,
      });
    const tags = [1, 2, 3, 4].map((cid) => admin.post(sqe(cid)));
    expect((await abort(1, 5)).status).to.equal('abortLimit');
    for (const operation of operations) rig.door.endOperation(operation, 0, 1);
    await admin.keepAlive();
    expect(tags.map((tag) => admin.answered(tag)?.result)).to.deep.equal([0n, 0n, 0n, 0n]);
    expect((await admin.identifyController()).acl).to.equal(3);
  });
});
