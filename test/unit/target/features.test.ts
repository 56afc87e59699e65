import { expect } from 'chai';
import { FeatureIdentifiersLog } from '../../../native/wire/logs.ts';
import { FEATURES } from '../../../target/features.ts';
import { HOST_ID, NQN, Rig } from './support.ts';
import type { HostQueue } from './support.ts';

describe('features', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start({
      ports: [{ address: '127.0.0.1', maxQueues: 8 }],
      subsystems: [{ nqn: NQN, namespaces: [{ memory: '1M' }] }],
    });
    admin = await rig.host();
  });
  afterEach(() => rig.stop());

  const listed = async (): Promise<number[]> => {
    const { features } = FeatureIdentifiersLog.decode((await admin.log(0x12, 1024)).data);
    return features.flatMap((entry, fid) => (entry & 1 ? [fid] : []));
  };

  it('are those of the table', async () => {
    expect(await listed()).to.deep.equal([0x07, 0x0b, 0x0f, 0x81]);
    const known = new Set(await listed());
    for (let fid = 0; fid < 256; fid++) {
      if (known.has(fid)) continue;
      expect((await admin.getFeature(fid)).status, `${fid}`).to.equal('invalidField');
      expect((await admin.setFeature(fid, 0)).status, `${fid}`).to.equal('invalidField');
    }
    expect(FEATURES.map(({ fid }) => fid)).to.include.members([...known]);
  }).timeout(20_000);

  it('number of queues: granted 0-based, never above the limit, FFFFh refused', async () => {
    expect((await admin.getFeature(0x07)).result).to.equal(0x0007_0007n);
    for (const [asked, granted] of [
      [0x0003_0003, 0x0003_0003n],
      [0, 0n],
      [0x0064_0001, 0x0007_0001n],
      [0xfffe_fffe, 0x0007_0007n],
    ] as const) {
      expect((await admin.setFeature(0x07, asked)).result).to.equal(granted);
      expect((await admin.getFeature(0x07)).result).to.equal(granted);
      expect((await admin.getFeature(0x07, { sel: 1 })).result).to.equal(0x0007_0007n);
    }
    for (const cdw11 of [0xffff_ffff, 0xffff_0003, 0x0003_ffff]) {
      const answer = await admin.setFeature(0x07, cdw11);
      expect([answer.status, answer.dnr]).to.deep.equal(['invalidField', true]);
    }
  });

  it('number of queues cannot be set once there are I/O queues', async () => {
    await rig.ioQueue(1);
    expect((await admin.setFeature(0x07, 3)).status).to.equal('commandSequence');
  });

  it('event configuration: what is offered, and nothing else', async () => {
    expect((await admin.setFeature(0x0b, 0x9ff)).status).to.equal('success');
    expect((await admin.getFeature(0x0b)).result).to.equal(0x9ffn);
    for (const bit of [9, 10, 12, 14, 31]) {
      expect((await admin.setFeature(0x0b, 2 ** bit)).status, `${bit}`).to.equal('invalidField');
    }
    expect((await admin.getFeature(0x0b)).result).to.equal(0x9ffn);
  });

  it('host identifier: 16 bytes with EXHID, refused without, set by Connect only', async () => {
    const answer = await admin.getFeature(0x81, { cdw11: 1 }, 16);
    expect([answer.status, answer.data]).to.deep.equal(['success', HOST_ID]);
    expect((await admin.getFeature(0x81, { cdw11: 0 }, 16)).status).to.equal('invalidField');
    expect((await admin.getFeature(0x81, { cdw11: 0 }, 8)).status).to.equal('invalidField');
    expect((await admin.getFeature(0x81, { cdw11: 1 }, 8)).status).to.equal('sglDataLength');
    expect((await admin.setFeature(0x81, 1, {}, 16)).status).to.equal('commandSequence');
    expect((await admin.setFeature(0x81, 0, {}, 8)).status).to.equal('commandSequence');
  });

  it('are of the controller: NSID 0 or FFFFFFFFh', async () => {
    expect((await admin.getFeature(0x07, { nsid: 0xffff_ffff })).status).to.equal('success');
    expect((await admin.getFeature(0x07, { nsid: 1 })).status).to.equal('invalidField');
    expect((await admin.setFeature(0x0f, 1000, { nsid: 1 })).status).to.equal(
      'featureNotNamespace',
    );
  });

  it('answer for capabilities, and are never saved', async () => {
    expect((await admin.getFeature(0x07, { sel: 3 })).result).to.equal(4n);
    expect((await admin.getFeature(0x81, { sel: 3 })).result).to.equal(0n);
    expect((await admin.getFeature(0x07, { sel: 4 })).status).to.equal('invalidField');
    expect((await admin.setFeature(0x07, 0, { save: true })).status).to.equal('featureNotSaveable');
  });
});

describe('volatile write cache', () => {
  let rig: Rig;
  const start = async (cache: 'write-back' | 'write-through'): Promise<HostQueue> => {
    rig = await Rig.start({
      ports: [{ address: '127.0.0.1' }],
      subsystems: [{ nqn: NQN, namespaces: [{ path: '/srv/a.img', cache }] }],
    });
    return rig.host();
  };
  afterEach(() => rig.stop());

  it('is there when a backing has one', async () => {
    const admin = await start('write-back');
    expect((await admin.identifyController()).vwcPresent).to.equal(true);
    expect((await admin.getFeature(0x06)).result).to.equal(1n);
    expect((await admin.setFeature(0x06, 1)).status).to.equal('success');
    expect((await admin.setFeature(0x06, 0)).status).to.equal('featureNotChangeable');
  });

  it('is absent when every write is durable', async () => {
    const admin = await start('write-through');
    expect((await admin.identifyController()).vwcPresent).to.equal(false);
    expect((await admin.getFeature(0x06)).status).to.equal('invalidField');
    expect((await admin.setFeature(0x06, 1)).status).to.equal('invalidField');
  });

  it('does not come or go while a host is attached', async () => {
    const admin = await start('write-through');
    const nsid = await rig.target.addNamespace(NQN, { path: '/srv/b.img' });
    expect((await admin.identifyController()).vwcPresent).to.equal(false);
    // A host that was told so sends no Flush: the new backing must make each write durable.
    expect(rig.door.callsOf('openBacking').at(-1)?.args[0]).to.include({ cache: 'write-through' });
    await rig.target.removeNamespace(NQN, nsid);
    await admin.disconnect();
    await rig.target.addNamespace(NQN, { path: '/srv/b.img' });
    const again = await rig.host();
    expect((await again.identifyController()).vwcPresent).to.equal(true);
    await rig.target.removeNamespace(NQN, 2);
    expect((await again.identifyController()).vwcPresent).to.equal(true);
  });
});
