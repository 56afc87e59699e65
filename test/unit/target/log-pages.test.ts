import { expect } from 'chai';
import { SmartLog, SupportedPagesLog } from '../../../native/wire/logs.ts';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { Rig } from './support.ts';
import type { HostQueue } from './support.ts';

describe('Get Log Page', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start();
    admin = await rig.host();
  });
  afterEach(() => rig.stop());

  const supported = async (queue: HostQueue): Promise<number[]> => {
    const { pages } = SupportedPagesLog.decode((await queue.log(0, 1024)).data);
    return pages.flatMap((entry, lid) => (entry & 1 ? [lid] : []));
  };

  it('knows the pages it lists, and no others', async () => {
    expect(await supported(admin)).to.deep.equal([0, 1, 2, 3, 4, 5, 0x0c, 0x12, 0x1e]);
    const discovery = await rig.host({}, { subnqn: DISCOVERY_NQN });
    expect(await supported(discovery)).to.deep.equal([0, 1, 5, 0x12, 0x70]);
    for (const queue of [admin, discovery]) {
      const listed = new Set(await supported(queue));
      for (let lid = 0; lid < 256; lid++) {
        const { status } = await queue.log(lid, 512);
        expect(status, `${lid}`).to.equal(listed.has(lid) ? 'success' : 'invalidLogPage');
      }
    }
  }).timeout(20_000);

  it('gives any part of a page, and zeros beyond its end', async () => {
    const whole = (await admin.log(5, 4096)).data;
    expect(whole.some((byte) => byte !== 0)).to.equal(true);
    for (const [lpo, bytes] of [
      [0, 4],
      [24, 8],
      [1024, 1024],
      [4092, 4],
    ] as const) {
      const { data } = await admin.log(5, bytes, { lpo: BigInt(lpo) });
      expect(data).to.deep.equal(whole.slice(lpo, lpo + bytes));
    }
    const beyond = (await admin.log(5, 8192, { lpo: 1024n })).data;
    expect(beyond.length).to.equal(8192);
    expect(beyond.subarray(0, 3072)).to.deep.equal(whole.subarray(1024));
    expect(beyond.subarray(3072).every((byte) => byte === 0)).to.equal(true);
    expect((await admin.log(5, 4, { lpo: 4096n })).status).to.equal('success');
  });

  it('refuses offsets beyond the end or inside a dword', async () => {
    for (const lpo of [4100n, 1n << 32n, (1n << 64n) - 4n, 1n, 2n, 4094n, (1n << 64n) - 1n]) {
      const answer = await admin.log(5, 4, { lpo });
      expect([answer.status, answer.dnr], `${lpo}`).to.deep.equal(['invalidField', true]);
    }
  });

  it('counts dwords over both halves of NUMD', async () => {
    const answer = await admin.log(2, 0x40000);
    expect([answer.status, answer.data.length]).to.deep.equal(['success', 0x40000]);
    expect((await admin.log(2, 1 << 20)).status).to.equal('success');
    expect((await admin.log(2, (1 << 20) + 4)).status).to.equal('invalidField');
    const huge = await admin.log(2, 512, { numdl: 0xffff, numdu: 0xffff });
    expect(huge.status).to.equal('invalidField');
    expect((await admin.log(2, 512, { numdl: 0 })).status).to.equal('sglDataLength');
    expect((await admin.log(2, 512, { numdl: 128 })).status).to.equal('sglDataLength');
  });

  it('takes NSID 0 and FFFFFFFFh, and refuses a namespace', async () => {
    expect((await admin.log(2, 512, { nsid: 0 })).status).to.equal('success');
    expect((await admin.log(2, 512, { nsid: 0xffff_ffff })).status).to.equal('success');
    for (const nsid of [1, 2, 0xffff_fffe]) {
      expect((await admin.log(2, 512, { nsid })).status).to.equal('invalidField');
    }
  });

  it('refuses index offsets and other command sets', async () => {
    expect((await admin.log(2, 512, { ot: true })).status).to.equal('invalidField');
    expect((await admin.log(5, 4096, { csi: 2 })).status).to.equal('invalidField');
    expect((await admin.log(2, 512, { csi: 2 })).status).to.equal('success');
  });

  it('counts errors and hours in the SMART page', async () => {
    await admin.command(0xff);
    await admin.setFeature(0x0f, 0);
    rig.clock.advance(3 * 3_600_000 + 5);
    const smart = SmartLog.decode((await admin.log(2, 512)).data);
    expect(smart).to.include({
      criticalWarning: 0,
      availableSpare: 100,
      powerOnHours: 3n,
      errorLogEntries: 1n,
      // Not known by controller.
      dataUnitsRead: 0n,
      dataUnitsWritten: 0n,
      hostReadCommands: 0n,
      hostWriteCommands: 0n,
    });
  });
});
