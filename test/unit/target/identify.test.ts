import { expect } from 'chai';
import {
  CommandSetList,
  IdentifyIndependentNamespace,
  IdentifyNamespace,
  decodeNamespaceDescriptors,
  decodeNamespaceList,
} from '../../../native/wire/identify.ts';
import { formatUuid } from '../../../native/common/uuid.ts';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { NQN, Rig } from './support.ts';
import type { HostQueue } from './support.ts';

const UUID = '0b1e8b9a-6f2c-4a34-9d33-0a6b0c2e1f55';

describe('Identify', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start({
      ports: [{ address: '127.0.0.1', inCapsuleBytes: 4096 }],
      subsystems: [
        {
          nqn: NQN,
          serial: 'SERIAL1',
          model: 'A disk',
          namespaces: [
            { nsid: 1, memory: '1M', uuid: UUID },
            { nsid: 3, path: '/srv/a.img', blockSize: 4096, readOnly: true },
            { nsid: 700, null: '1G' },
          ],
        },
      ],
    });
    admin = await rig.host();
  });
  afterEach(() => rig.stop());

  it('of the controller meets what a Linux host demands', async () => {
    const values = await admin.identifyController();
    expect(values).to.include({
      sn: 'SERIAL1',
      mn: 'A disk',
      cntlid: 1,
      cntrltype: 1,
      subnqn: NQN,
      mdts: 8,
      ver: 0x20000,
      sqes: 0x66,
      cqes: 0x44,
      ioccsz: 0x104,
      iorcsz: 1,
      icdoff: 0,
      msdbd: 1,
      acl: 3,
      aerl: 3,
      maxcmd: 128,
      cmicMultiController: true,
      cmicMultiPort: true,
      cmicAna: true,
      oaesAna: true,
      anatt: 10,
      anacap: 0x1f,
      anagrpmax: 128,
      nanagrpid: 128,
      fcattStatic: false,
      fuses: 0,
      oncsWriteZeroes: true,
      oncsDatasetManagement: true,
      oncsCompare: true,
      oncsVerify: true,
      oncsCopy: false,
      oncsReservations: false,
    });
    expect(values.kas).to.be.greaterThan(0);
    expect(values.mnan).to.be.within(1, values.nn);
    const page = (await admin.identify({ cns: 1 })).data;
    expect(Buffer.from(page).readUInt32LE(536)).to.equal(0x0010_0005);
  });

  it('says that there is no in-capsule data when there is none', async () => {
    await rig.target.addPort({ address: '127.0.0.1', port: 4421, inCapsuleBytes: 0 });
    const other = await rig.host({}, {}, { port: 4421 });
    expect(await other.identifyController()).to.include({
      ioccsz: 4,
      sglsInCapsuleOffset: false,
      sglsKeyed: true,
    });
  });

  it('of a discovery controller says so', async () => {
    const discovery = await rig.host({}, { subnqn: DISCOVERY_NQN });
    expect(await discovery.identifyController()).to.include({
      cntrltype: 2,
      subnqn: DISCOVERY_NQN,
      nn: 0,
      oaesDiscovery: true,
      oaesNamespaceAttribute: false,
      lpaExtendedData: true,
    });
  });

  it('of a namespace', async () => {
    const first = IdentifyNamespace.decode((await admin.identify({ cns: 0, nsid: 1 })).data);
    expect(first).to.include({
      nsze: 2048n,
      ncap: 2048n,
      nlbaf: 0,
      flbasFormat: 0,
      nmicShared: true,
    });
    expect(first.lbaf[0]).to.deep.equal({ ms: 0, lbads: 9, rp: 0 });
    expect(Buffer.from(first.nguid).toString('hex')).to.equal(UUID.replaceAll('-', ''));
    const second = IdentifyNamespace.decode((await admin.identify({ cns: 0, nsid: 3 })).data);
    expect(second).to.include({ nsze: 256n, nsattrWriteProtected: true });
    expect(second.lbaf[0]?.lbads).to.equal(12);
  });

  it('of an NSID without namespace is zeros, of one that cannot be is refused', async () => {
    const { status, data } = await admin.identify({ cns: 0, nsid: 2 });
    expect([status, data.every((byte) => byte === 0)]).to.deep.equal(['success', true]);
    for (const nsid of [0, 4097, 0xffff_fffe, 0xffff_ffff]) {
      const answer = await admin.identify({ cns: 0, nsid });
      expect([answer.status, answer.dnr], `${nsid}`).to.deep.equal(['invalidNamespace', true]);
    }
    expect((await admin.identify({ cns: 3, nsid: 2 })).status).to.equal('invalidNamespace');
    expect((await admin.identify({ cns: 3, nsid: 0 })).status).to.equal('invalidNamespace');
  });

  it('lists the NSIDs above the one given', async () => {
    const list = async (nsid: number, cns = 2): Promise<number[]> =>
      decodeNamespaceList((await admin.identify({ cns, nsid })).data);
    expect(await list(0)).to.deep.equal([1, 3, 700]);
    expect(await list(1)).to.deep.equal([3, 700]);
    expect(await list(700)).to.deep.equal([]);
    expect(await list(3, 7)).to.deep.equal([700]);
    for (const nsid of [0xffff_fffe, 0xffff_ffff]) {
      expect((await admin.identify({ cns: 2, nsid })).status).to.equal('invalidNamespace');
    }
  });

  it('gives UUID, NGUID and command set of a namespace', async () => {
    const page = (await admin.identify({ cns: 3, nsid: 1 })).data;
    const list = decodeNamespaceDescriptors(page);
    expect(list.map(({ type }) => type)).to.deep.equal([3, 2, 4]);
    expect(formatUuid(list[0]?.value ?? new Uint8Array())).to.equal(UUID);
    expect([...(list[2]?.value ?? [])]).to.deep.equal([0]);
  });

  it('knows the other structures of the NVM command set', async () => {
    for (const [cns, nsid] of [
      [5, 1],
      [6, 0],
      [8, 1],
      [0x1c, 0],
    ] as const) {
      expect((await admin.identify({ cns, nsid })).status, `${cns}`).to.equal('success');
    }
    const independent = (await admin.identify({ cns: 8, nsid: 3 })).data;
    expect(IdentifyIndependentNamespace.decode(independent)).to.include({
      ready: true,
      nmicShared: true,
      nsattrWriteProtected: true,
    });
    const sets = CommandSetList.decode((await admin.identify({ cns: 0x1c })).data);
    expect(sets.first.vector).to.equal(1n);
  });

  it('refuses other CNS values and other command sets, with the field', async () => {
    for (const cns of [0x04, 0x09, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x1a, 0x1d, 0xff]) {
      expect((await admin.identify({ cns, nsid: 1 })).status, `${cns}`).to.equal('invalidField');
    }
    for (const cns of [5, 6, 7]) {
      for (const csi of [1, 2, 0xff]) {
        expect((await admin.identify({ cns, csi, nsid: 1 })).status).to.equal('invalidField');
      }
    }
  });
});
