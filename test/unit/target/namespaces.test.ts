import { expect } from 'chai';
import { AsyncEventResult } from '../../../native/wire/aer.ts';
import { decodeNamespaceList, IdentifyNamespace } from '../../../native/wire/identify.ts';
import { ChangedNamespacesLog } from '../../../native/wire/logs.ts';
import { codeOf } from '../../support/error-code.ts';
import { systemError } from '../../support/fake-door.ts';
import { MEMORY, NQN, Rig, settle } from './support.ts';
import type { Answer, HostQueue } from './support.ts';

function eventOf(answer: Answer | undefined) {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(answer?.result ?? 0n);
  return AsyncEventResult.decode(bytes);
}

const NAMESPACE_NOTICE = { type: 2, info: 0, lid: 4 };

describe('live namespaces', () => {
  let rig: Rig;
  let admin: HostQueue;
  beforeEach(async () => {
    rig = await Rig.start();
    admin = await rig.host();
    await admin.setFeature(0x0b, 0x100);
  });
  afterEach(() => rig.stop());

  const active = async (): Promise<number[]> =>
    decodeNamespaceList((await admin.identify({ cns: 2 })).data);
  const changed = async (rae = false): Promise<number[]> => {
    const { nsids } = ChangedNamespacesLog.decode((await admin.log(4, 4096, { rae })).data);
    return nsids.slice(0, nsids.indexOf(0));
  };

  it('that is added gets an event, the changed list, and the table of the I/O queues', async () => {
    const event = await admin.requestEvent();
    expect(await rig.target.addNamespace(NQN, { memory: '2M', blockSize: 4096 })).to.equal(2);
    await settle();
    expect(eventOf(admin.answered(event))).to.deep.equal(NAMESPACE_NOTICE);
    expect(await changed()).to.deep.equal([2]);
    expect(await changed()).to.deep.equal([]);
    expect(await active()).to.deep.equal([1, 2]);
    const [table] = [...rig.door.tables.values()];
    expect([...(table?.keys() ?? [])]).to.deep.equal([1, 2]);
  });

  it('that is removed is drained before its backing closes', async () => {
    let held: number | undefined;
    rig.door.onOperation = (name, operation) => {
      if (name === 'removeNamespace') held = operation;
      else rig.door.endOperation(operation);
    };
    const removal = rig.target.removeNamespace(NQN, 1);
    await settle();
    expect(rig.door.callsOf('closeBacking')).to.deep.equal([]);
    rig.door.endOperation(held ?? 0);
    await removal;
    expect(rig.door.callsOf('closeBacking').length).to.equal(1);
    expect(await active()).to.deep.equal([]);
  });

  it('that is disabled leaves the list, and comes back as it was', async () => {
    const event = await admin.requestEvent();
    await rig.target.disableNamespace(NQN, 1);
    await settle();
    expect(eventOf(admin.answered(event))).to.deep.equal(NAMESPACE_NOTICE);
    expect(await active()).to.deep.equal([]);
    expect(rig.door.backings.size).to.equal(0);
    expect(rig.target.config.subsystems[0]?.namespaces[0]).to.include({ nsid: 1, enabled: false });
    await rig.target.enableNamespace(NQN, 1);
    expect(await active()).to.deep.equal([1]);
    await rig.target.enableNamespace(NQN, 1);
    await rig.target.disableNamespace(NQN, 1);
    await rig.target.disableNamespace(NQN, 1);
  });

  it('that is resized says its new size and gets an event', async () => {
    const event = await admin.requestEvent();
    await rig.target.resizeNamespace(NQN, 1, '4MiB');
    await settle();
    expect(eventOf(admin.answered(event))).to.deep.equal(NAMESPACE_NOTICE);
    const page = (await admin.identify({ cns: 0, nsid: 1 })).data;
    expect(IdentifyNamespace.decode(page).nsze).to.equal(8192n);
    expect(await codeOf(rig.target.resizeNamespace(NQN, 1, 1000n))).to.equal('NAMESPACE_SIZE');
    expect(await codeOf(rig.target.resizeNamespace(NQN, 1, 0n))).to.equal('NAMESPACE_SIZE');
  });

  it('one after the other each get an event, once the list was read', async () => {
    for (let nsid = 2; nsid <= 4; nsid++) await rig.target.addNamespace(NQN, { memory: '1M' });
    await changed();
    for (let nsid = 2; nsid <= 4; nsid++) {
      const event = await admin.requestEvent();
      expect(admin.answered(event)).to.equal(undefined);
      await rig.target.removeNamespace(NQN, nsid);
      await settle();
      expect(eventOf(admin.answered(event))).to.deep.equal(NAMESPACE_NOTICE);
      expect(await changed(true)).to.deep.equal([nsid]);
      expect(await changed(false)).to.deep.equal([nsid]);
    }
  });

  it('changed in a batch cause one event', async () => {
    const events = [await admin.requestEvent(), await admin.requestEvent()];
    for (let round = 0; round < 5; round++) await rig.target.addNamespace(NQN, { memory: '1M' });
    await settle();
    expect(events.map((tag) => admin.answered(tag) !== undefined)).to.deep.equal([true, false]);
    expect(await changed()).to.deep.equal([2, 3, 4, 5, 6]);
    await rig.target.removeNamespace(NQN, 6);
    await settle();
    expect(admin.answered(events[1] ?? 0)?.status).to.equal('success');
  });

  it('changed before a request waits are told when it comes', async () => {
    await rig.target.addNamespace(NQN, { memory: '1M' });
    const event = await admin.requestEvent();
    expect(eventOf(admin.answered(event))).to.deep.equal(NAMESPACE_NOTICE);
  });

  it('cause no event after the list was read, or when the host did not ask', async () => {
    await rig.target.addNamespace(NQN, { memory: '1M' });
    await changed();
    expect(admin.answered(await admin.requestEvent())).to.equal(undefined);
    const quiet = await rig.host();
    const event = await quiet.requestEvent();
    await rig.target.removeNamespace(NQN, 2);
    await settle();
    expect(quiet.answered(event)).to.equal(undefined);
  });

  it('more than 1024 changes show as FFFFFFFFh', async () => {
    for (let round = 0; round < 1025; round++) {
      await rig.target.addNamespace(NQN, { null: '1M', nsid: round + 2, enabled: false });
    }
    for (let nsid = 2; nsid < 1026; nsid++) await rig.target.enableNamespace(NQN, nsid);
    const full = ChangedNamespacesLog.decode((await admin.log(4, 4096, { rae: true })).data).nsids;
    expect([full[0], full[1023]]).to.deep.equal([2, 1025]);
    await rig.target.enableNamespace(NQN, 1026);
    expect(await changed()).to.deep.equal([0xffff_ffff]);
    expect(await changed()).to.deep.equal([]);
  }).timeout(30_000);

  it('take five event requests only up to the limit of four', async () => {
    for (let round = 0; round < 4; round++) {
      expect(admin.answered(await admin.requestEvent())).to.equal(undefined);
    }
    const fifth = await admin.requestEvent();
    expect(admin.answered(fifth)?.status).to.equal('aerLimit');
  });

  it('are refused with a name when the NSID, the UUID or the backing is taken or missing', async () => {
    expect(await codeOf(rig.target.addNamespace(NQN, { nsid: 1, memory: '1M' }))).to.equal(
      'NAMESPACE_EXISTS',
    );
    const uuid = rig.target.config.subsystems[0]?.namespaces[0]?.uuid ?? '';
    expect(await codeOf(rig.target.addNamespace(NQN, { memory: '1M', uuid }))).to.equal(
      'NAMESPACE_DUPLICATE',
    );
    expect(await codeOf(rig.target.removeNamespace(NQN, 9))).to.equal('NAMESPACE_UNKNOWN');
    expect(await codeOf(rig.target.enableNamespace(NQN, 9))).to.equal('NAMESPACE_UNKNOWN');
    expect(await codeOf(rig.target.addNamespace(`${NQN}x`, { memory: '1M' }))).to.equal(
      'SUBSYSTEM_UNKNOWN',
    );
    rig.door.onOpenBacking = () => {
      throw systemError('ENOENT', '/srv/missing: no such file');
    };
    const adding = rig.target.addNamespace(NQN, { path: '/srv/missing' });
    expect(await codeOf(adding)).to.equal('NAMESPACE_OPEN');
    expect(rig.target.config.subsystems[0]?.namespaces.length).to.equal(1);
  });

  it('close their backing again when the table refuses them', async () => {
    rig.door.onOperation = (name, operation) => {
      rig.door.endOperation(operation, name === 'setNamespace' ? 12 : 0, 0, 'no memory');
    };
    let failed = false;
    await rig.target.addNamespace(NQN, { memory: '1M' }).catch(() => {
      failed = true;
    });
    expect([failed, rig.door.backings.size]).to.deep.equal([true, 1]);
    expect(await active()).to.deep.equal([1]);
  });

  it('change one after the other, whatever order the answers take', async () => {
    await Promise.all([
      ...Array.from({ length: 50 }, async () => {
        await rig.target.disableNamespace(NQN, 1);
        await rig.target.enableNamespace(NQN, 1);
      }),
      rig.target.resizeNamespace(NQN, 1, '2M'),
      rig.target.addNamespace(NQN, { nsid: 2, memory: '1M' }),
      rig.target.removeNamespace(NQN, 2),
    ]);
    expect(await active()).to.deep.equal([1]);
    expect(rig.door.backings.size).to.equal(1);
  });
});

describe('live subsystems and ports', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start();
  });
  afterEach(() => rig.stop());

  it('end their controllers before they go, and a second removal is told so', async () => {
    const admin = await rig.host();
    await rig.ioQueue(1);
    const first = rig.target.removeSubsystem(NQN);
    expect(await codeOf(rig.target.removeSubsystem(NQN))).to.equal('SUBSYSTEM_REMOVING');
    await first;
    expect(admin.open).to.equal(false);
    expect([rig.door.tables.size, rig.door.backings.size]).to.deep.equal([0, 0]);
    expect(await codeOf(rig.target.removeSubsystem(NQN))).to.equal('SUBSYSTEM_UNKNOWN');
    expect((await (await rig.queue(0)).connect()).status).to.equal('connectInvalid');
    await rig.target.addSubsystem({ nqn: NQN, namespaces: [{ memory: '1M' }] });
    expect((await (await rig.queue(0)).connect()).status).to.equal('success');
  });

  it('are refused twice', async () => {
    expect(await codeOf(rig.target.addSubsystem({ nqn: NQN }))).to.equal('SUBSYSTEM_EXISTS');
  });

  it('whose backing cannot be opened leave nothing behind', async () => {
    rig.door.onOpenBacking = ({ path }) => {
      if (path === '/b') throw systemError('EISDIR', '/b: is a directory');
    };
    const nqn = 'nqn.2024-01.com.example:two';
    const adding = rig.target.addSubsystem({ nqn, namespaces: [{ path: '/a' }, { path: '/b' }] });
    expect(await codeOf(adding)).to.equal('NAMESPACE_OPEN');
    expect([rig.door.tables.size, rig.door.backings.size]).to.deep.equal([1, 1]);
  });

  it('open an address once and close it with its last port', async () => {
    await rig.target.addPort({ address: '127.0.0.1', port: 4421 });
    expect(rig.door.devices.size).to.equal(1);
    await rig.target.addPort({ address: '::1' });
    expect(rig.door.devices.size).to.equal(2);
    await rig.target.removePort('0:0:0:0:0:0:0:1', 4420);
    expect(rig.door.devices.size).to.equal(1);
    expect(await codeOf(rig.target.removePort('::1', 4420))).to.equal('PORT_UNKNOWN');
  });

  it('of a provider that is not there are refused as such', async () => {
    const rig = new Rig();
    rig.door.onOpenDevice = () => {
      throw systemError('ENOTSUP', 'no such provider');
    };
    const error = await rig.start({ ...MEMORY, provider: 'verbs' }).then(
      () => undefined,
      (reason: unknown) => reason,
    );
    expect(error).to.include({ code: 'PROVIDER_UNAVAILABLE' });
  });

  it('that cannot be opened name address and cause, and can be tried again', async () => {
    rig.door.onOpenDevice = () => {
      throw systemError('EADDRINUSE', 'UDP port 4791 is held by process 77');
    };
    await rig.target.addPort({ address: '127.0.0.5' }).then(
      () => expect.fail('opened'),
      (error: unknown) => {
        expect((error as Error).message)
          .to.contain('127.0.0.5')
          .and.to.contain('process 77');
      },
    );
    rig.door.onOpenDevice = undefined;
    await rig.target.addPort({ address: '127.0.0.5' });
    await rig.target.removePort('127.0.0.5', 4420);
    expect(rig.door.devices.size).to.equal(1);
  });

  it('size the receive buffers for the largest in-capsule data at the start', async () => {
    expect(rig.door.callsOf('openDevice')[0]?.args[0]).to.include({ inCapsuleBytesMax: 4096 });
    const adding = rig.target.addPort({ address: '127.0.0.1', port: 4421, inCapsuleBytes: 8192 });
    expect(await codeOf(adding)).to.equal('PORT_IN_CAPSULE');
    const large = await Rig.start({ ports: [{ address: '127.0.0.1', inCapsuleBytes: 8192 }] });
    expect(large.door.callsOf('openDevice')[0]?.args[0]).to.include({ inCapsuleBytesMax: 8192 });
    await large.target.addPort({ address: '127.0.0.1', port: 4421 });
    await large.stop();
  });

  it('that go take their associations along', async () => {
    await rig.target.addPort({ address: '127.0.0.1', port: 4421 });
    const stays = await rig.host();
    const goes = await rig.host({}, {}, { port: 4421 });
    const waits = await rig.queue(0, { port: 4421 });
    await rig.target.removePort('127.0.0.1', 4421);
    expect([stays.open, goes.open, waits.open]).to.deep.equal([true, false, false]);
    expect(rig.target.controllers.length).to.equal(1);
  });

  it('warn when two subsystems share an identity', async () => {
    const uuid = rig.target.config.subsystems[0]?.namespaces[0]?.uuid ?? '';
    const nqn = 'nqn.2024-01.com.example:two';
    await rig.target.addSubsystem({ nqn, namespaces: [{ memory: '1M', uuid }] });
    expect(rig.log.some((line) => line.includes('same UUID'))).to.equal(true);
  });

  it('close in order: no new connections, queues drained, then backings', async () => {
    await rig.host();
    const io = await rig.ioQueue(1);
    const held: number[] = [];
    rig.door.onCloseQueue = (queue) => {
      held.push(queue);
    };
    const closing = rig.target.close();
    await settle();
    expect(rig.door.listeners.size).to.equal(0);
    expect(held).to.include(io.id);
    expect(rig.door.callsOf('closeBacking')).to.deep.equal([]);
    expect(rig.door.callsOf('removeNamespace')).to.deep.equal([]);
    rig.door.onCloseQueue = undefined;
    for (const queue of held) rig.door.endQueue(queue, 'drained');
    await closing;
    expect(rig.door.backings.size).to.equal(0);
    expect(await codeOf(rig.target.addPort({ address: '127.0.0.9' }))).to.equal('TARGET_CLOSING');
    expect(rig.target.close()).to.equal(rig.target.close());
  });

  it('that cannot start leave nothing behind', async () => {
    const bad = new Rig();
    bad.door.onOpenDevice = () => {
      throw systemError('EADDRNOTAVAIL', 'no such address');
    };
    const starting = bad.start({
      ports: [{ address: '192.0.2.1' }],
      subsystems: [{ nqn: NQN, namespaces: [{ memory: '1M' }] }],
    });
    expect(await codeOf(starting)).to.equal('DEVICE_OPEN');
    expect([bad.door.backings.size, bad.door.tables.size]).to.deep.equal([0, 0]);
    expect(bad.door.callsOf('stop').length).to.equal(1);
  });
});
