/** Write protection that comes and goes while hosts are attached, and sizes that a restart finds again. */
import { expect } from 'chai';
import { IdentifyIndependentNamespace, IdentifyNamespace } from '../../../native/wire/identify.ts';
import { codeOf } from '../../support/error-code.ts';
import { systemError } from '../../support/fake-door.ts';
import { NQN, Rig, settle } from './support.ts';
import type { HostQueue } from './support.ts';

describe('write protection', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start();
    admin = await rig.host();
    await admin.setFeature(0x0b, 0x100);
  });
  afterEach(() => rig.stop());

  const told = async (): Promise<boolean[]> => {
    const [namespace, independent] = await Promise.all([
      admin.identify({ cns: 0, nsid: 1 }),
      admin.identify({ cns: 8, nsid: 1 }),
    ]);
    return [
      IdentifyNamespace.decode(namespace.data).nsattrWriteProtected,
      IdentifyIndependentNamespace.decode(independent.data).nsattrWriteProtected,
    ];
  };
  const held = (): boolean | undefined => [...rig.door.tables.values()][0]?.get(1)?.writeProtected;

  it('is told by NSATTR and an event, held by the I/O queues, and saved', async () => {
    expect([await told(), held()]).to.deep.equal([[false, false], false]);
    const event = await admin.requestEvent();
    await rig.target.protectNamespace(NQN, 1, true);
    await settle();
    expect(admin.answered(event)?.result).to.equal(0x04_00_02n);
    expect([await told(), held()]).to.deep.equal([[true, true], true]);
    expect(rig.target.config.subsystems[0]?.namespaces[0]).to.include({ writeProtected: true });
    await admin.log(4, 4096);
    const second = await admin.requestEvent();
    await rig.target.protectNamespace(NQN, 1, false);
    await settle();
    expect(admin.answered(second)?.status).to.equal('success');
    expect([await told(), held()]).to.deep.equal([[false, false], false]);
  });

  it('that is so already is no change', async () => {
    const event = await admin.requestEvent();
    await rig.target.protectNamespace(NQN, 1, false);
    await settle();
    expect(admin.answered(event)).to.equal(undefined);
    expect(rig.door.callsOf('setNamespace').length).to.equal(1);
  });

  it('answers when native has it', async () => {
    const operations: number[] = [];
    rig.door.onOperation = (_, operation) => operations.push(operation);
    let over = false;
    const change = rig.target.protectNamespace(NQN, 1, true).then(() => {
      over = true;
    });
    await settle();
    expect([over, operations.length]).to.deep.equal([false, 1]);
    rig.door.onOperation = undefined;
    rig.door.endOperation(operations[0] ?? 0);
    await change;
  });

  it('that native refuses leaves everything as it was', async () => {
    rig.door.onOperation = (_, operation) => {
      rig.door.endOperation(operation, 12, 0, 'no memory');
    };
    await rig.target.protectNamespace(NQN, 1, true).then(
      () => expect.fail('done'),
      (error: unknown) => expect((error as Error).message).to.contain('no memory'),
    );
    rig.door.onOperation = undefined;
    expect(await told()).to.deep.equal([false, false]);
    expect(rig.target.config.subsystems[0]?.namespaces[0]).to.include({ writeProtected: false });
  });

  it('holds for a namespace that is disabled when it comes back', async () => {
    await rig.target.disableNamespace(NQN, 1);
    await rig.target.protectNamespace(NQN, 1, true);
    await rig.target.enableNamespace(NQN, 1);
    expect([await told(), held()]).to.deep.equal([[true, true], true]);
  });

  it('does not end for what is opened read-only', async () => {
    await rig.target.addNamespace(NQN, { memory: '1M', readOnly: true });
    expect(await codeOf(rig.target.protectNamespace(NQN, 2, false))).to.equal(
      'NAMESPACE_READ_ONLY',
    );
    expect(await codeOf(rig.target.protectNamespace(NQN, 3, true))).to.equal('NAMESPACE_UNKNOWN');
  });
});

describe('the size of a file namespace', () => {
  let rig: Rig;
  afterEach(() => rig.stop());

  it('is saved when it was changed, as the file may be longer', async () => {
    rig = await Rig.start();
    await rig.target.addNamespace(NQN, { path: '/srv/a.img' });
    await rig.target.resizeNamespace(NQN, 2, 4096n);
    expect(rig.target.config.subsystems[0]?.namespaces[1]?.size).to.equal(4096n);
  });

  it('does not change while the file is closed', async () => {
    rig = await Rig.start();
    await rig.target.addNamespace(NQN, { path: '/srv/a.img', enabled: false });
    expect(await codeOf(rig.target.resizeNamespace(NQN, 2, 4096n))).to.equal('NAMESPACE_DISABLED');
    expect(rig.target.config.subsystems[0]?.namespaces[1]?.size).to.equal(undefined);
  });
});

describe('ports', () => {
  let rig: Rig;
  afterEach(() => rig.stop());

  it('on a place that is taken are refused, and the first stays', async () => {
    rig = await Rig.start();
    for (const more of [{}, { queueDepth: 64 }, { address: '::ffff:127.0.0.1' }]) {
      const wanted = { address: '127.0.0.1', ...more };
      expect(await codeOf(rig.target.addPort(wanted))).to.equal('PORT_EXISTS');
    }
    expect(rig.target.config.ports).to.deep.include.members([
      { address: '127.0.0.1', port: 4420, inCapsuleBytes: 4096, queueDepth: 128, maxQueues: 64 },
    ]);
    expect(rig.door.callsOf('listen').length).to.equal(1);
  });

  it('that could not be opened leave nothing, and can be added when the address is free', async () => {
    rig = await Rig.start();
    rig.door.onOpenDevice = () => {
      throw systemError('EADDRINUSE', 'held by process 7');
    };
    expect(await codeOf(rig.target.addPort({ address: '::1' }))).to.equal('DEVICE_OPEN');
    rig.door.onOpenDevice = undefined;
    await rig.target.addPort({ address: '::1' });
    await rig.target.removePort('::1', 4420);
    await rig.target.addPort({ address: '::1' });
    expect(rig.target.ports.length).to.equal(2);
  });

  it('take commands without in-capsule data', async () => {
    rig = await Rig.start({
      ports: [{ address: '127.0.0.1', inCapsuleBytes: 0 }],
      subsystems: [{ nqn: NQN }],
    });
    const { ioccsz, sglsInCapsuleOffset } = await (await rig.host()).identifyController();
    expect([ioccsz, sglsInCapsuleOffset]).to.deep.equal([4, false]);
  });
});
