/** Which controllers and namespaces belong together, and what becomes of namespaces that change, go and come. */
import { expect } from 'chai';
import { NvmeStatusError } from '../../../../native/common/errors.ts';
import { DisconnectedError } from '../../../../initiator/errors.ts';
import { UUIDS, fakeNamespace } from '../fake-controller.ts';
import { rejection, settle } from '../support.ts';
import {
  A,
  B,
  MultipathEvents,
  PATH_A,
  PATH_B,
  outcomeOf,
  stateOf,
  statesOf,
  withFabric,
} from './fabric.ts';
import type { Fabric, FakePort } from './fabric.ts';

const QUIET = { keepAliveMs: 0, reconnectDelayMs: 1000 };
const ONE_PATH = { paths: [{ address: A }] };
const NO_UUID = '00000000-0000-0000-0000-000000000000';

/** Another namespace under this NSID at this port. */
function give(port: FakePort, nsid: number, blocks = 2048, uuid: string = UUIDS[0]): void {
  port.namespaces.set(nsid, fakeNamespace(blocks, 512, uuid));
  port.share(nsid);
}

function change(port: FakePort, fields: object): void {
  const namespace = port.namespaces.get(1);
  if (namespace) namespace.identify = { ...namespace.identify, ...fields };
}

/** Paths on which a command of namespace 1 was seen, of `reads` reads. */
async function pathsOfReads(fabric: Fabric, read: () => Promise<unknown>): Promise<string> {
  const counts = (): number[] =>
    [fabric.a, fabric.b].map(({ log }) => log.filter((name) => name === 'read').length);
  const before = counts();
  for (let index = 0; index < 4; index += 1) await read();
  return counts()
    .map((count, index) => (count > (before[index] ?? 0) ? 'ab'.charAt(index) : ''))
    .join('');
}

describe('a controller that does not belong to the others', () => {
  const bad: readonly (readonly [string, (port: FakePort) => void, RegExp])[] = [
    [
      'another serial number',
      (port) => (port.controller = { ...port.controller, sn: 'SN2' }),
      /path 192\.0\.2\.12:4420: its serial number \(SN\) is "SN2", on the other paths "SN1"/,
    ],
    [
      'the same CNTLID',
      (port) => {
        port.setCntlid(1);
      },
      /path 192\.0\.2\.12:4420: .*\(CNTLID\) 1 is that of path 192\.0\.2\.11:4420/,
    ],
    [
      'a subsystem of one controller',
      (port) => (port.controller = { ...port.controller, cmicMultiController: false }),
      /CMIC bit 1 is 0/,
    ],
    [
      'a smaller MDTS',
      (port) => (port.controller = { ...port.controller, mdts: 4 }),
      /carry 65536 bytes \(MDTS\), those of the other paths 131072/,
    ],
  ];
  for (const [what, spoil, message] of bad) {
    it(`is refused for ${what}, and shown`, async () => {
      await withFabric(async (fabric) => {
        spoil(fabric.b);
        const subsystem = await fabric.connect(QUIET);
        expect(statesOf(subsystem)).to.deep.equal(['live', 'failed']);
        expect(subsystem.paths[1]?.reason).to.match(message);
        const { attempts } = fabric.b;
        await fabric.pass(5000);
        expect(fabric.b.attempts, 'asked once').to.equal(attempts);
        await subsystem.namespace(1).read(0, 1);
        await subsystem.removePath(PATH_B);
        const error = await rejection(subsystem.addPath({ address: B }), Error);
        expect(error.message).to.match(message);
        expect(statesOf(subsystem)).to.deep.equal(['live']);
        await subsystem.disconnect();
      });
    });
  }

  it('after a restart is tried again: what contradicts it may not know yet that it is lost', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      // The target starts anew and counts from 1 again; only B has noticed.
      fabric.b.setCntlid(1);
      fabric.b.cut();
      await fabric.pass(1000);
      expect(stateOf(subsystem, PATH_B)).to.equal('reconnecting');
      expect(subsystem.paths[1]?.reason).to.match(/CNTLID/);
      fabric.a.setCntlid(2);
      fabric.a.cut();
      await fabric.pass(3000);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      await subsystem.disconnect();
    });
  });

  it('may have another serial number after all were lost', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      for (const port of [fabric.a, fabric.b]) {
        port.controller = { ...port.controller, sn: 'NEW' };
        port.cut();
      }
      await fabric.pass(2000);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      await subsystem.namespace(1).read(0, 1);
      await subsystem.disconnect();
    });
  });
});

describe('a namespace that two paths do not agree about', () => {
  const bad: readonly (readonly [string, (port: FakePort) => void, RegExp])[] = [
    [
      'UUID',
      (port) => {
        give(port, 1, 2048, UUIDS[1]);
      },
      /UUID is 22222222-.*, known is 11111111-/,
    ],
    [
      'NGUID',
      (port) => {
        change(port, { nguid: new Uint8Array(16).fill(7) });
      },
      /NGUID is 0707.*, known is absent/,
    ],
    [
      'EUI64',
      (port) => {
        change(port, { eui64: new Uint8Array(8).fill(9) });
      },
      /EUI64 is 0909.*, known is absent/,
    ],
    [
      'size',
      (port) => {
        give(port, 1, 1024);
      },
      /size in blocks is 1024, known is 2048/,
    ],
    [
      'block size',
      (port) => {
        port.namespaces.set(1, fakeNamespace(2048, 4096));
        port.share(1);
      },
      /block size is 4096, known is 512/,
    ],
    [
      'sharing (NMIC)',
      (port) => {
        change(port, { nmicShared: false });
      },
      /NMIC bit 0/,
    ],
  ];
  for (const [what, spoil, message] of bad) {
    it(`is not joined: ${what}`, async () => {
      await withFabric(async (fabric) => {
        const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
        const events = new MultipathEvents(subsystem);
        spoil(fabric.b);
        await subsystem.addPath({ address: B });
        expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
        expect(events.warnings).to.have.length(1);
        expect(events.warnings[0]).to.match(message).and.to.contain(PATH_B);
        const namespace = subsystem.namespace(1);
        expect(await pathsOfReads(fabric, () => namespace.read(0, 1))).to.equal('a');
        // Nor when the path that has it is away for a while, whatever happens on the other one.
        fabric.a.die();
        await settle();
        const read = outcomeOf(namespace.read(0, 1));
        fabric.b.changeAna('nonOptimized');
        await fabric.pass(3000);
        expect(read.now).to.equal('pending');
        expect(namespace.removed).to.equal(false);
        fabric.a.unreachable = false;
        await fabric.pass(1500);
        expect(read.now).to.equal('resolved');
        await subsystem.disconnect();
      });
    });
  }

  it('is not joined without any identity, also while the path that has it is lost', async () => {
    await withFabric(async (fabric) => {
      give(fabric.a, 1, 2048, NO_UUID);
      give(fabric.b, 1, 2048, NO_UUID);
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
      const events = new MultipathEvents(subsystem);
      await subsystem.addPath({ address: B });
      expect(events.warnings.join()).to.match(/neither UUID nor NGUID nor EUI64/);
      const namespace = subsystem.namespace(1);
      fabric.a.die();
      await settle();
      const write = outcomeOf(namespace.write(0, new Uint8Array(512)));
      fabric.b.changeAna('nonOptimized');
      await settle();
      expect(write.now).to.equal('pending');
      expect(fabric.b.log).not.to.include('write');
      fabric.a.unreachable = false;
      await fabric.pass(1500);
      expect(write.now).to.equal('resolved');
      await subsystem.disconnect();
    });
  });

  it('replaces the other one when no path has that any more', async () => {
    await withFabric(async (fabric) => {
      give(fabric.b, 1, 1024, UUIDS[1]);
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
      await subsystem.addPath({ address: B });
      const old = subsystem.namespace(1);
      await subsystem.removePath(PATH_A);
      await settle();
      expect(old.removed).to.equal(true);
      expect(subsystem.namespace(1).ids.uuid).to.equal(UUIDS[1]);
      await subsystem.namespace(1).read(1023, 1);
      await subsystem.disconnect();
    });
  });

  it('is another one after the only path came back: the old one fails', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
      const events = new MultipathEvents(subsystem);
      const old = subsystem.namespace(1);
      fabric.a.cut();
      await settle();
      const write = outcomeOf(old.write(0, new Uint8Array(512)));
      give(fabric.a, 1, 4096, UUIDS[2]);
      await fabric.pass(1000);
      expect(statesOf(subsystem)).to.deep.equal(['live']);
      expect(write.now).to.match(/Write/);
      expect(fabric.a.log).not.to.include('write');
      await rejection(old.read(0, 1), DisconnectedError);
      expect(subsystem.namespace(1).lbaCount).to.equal(4096n);
      await subsystem.namespace(1).read(4095, 1);
      expect(events.namespaces).to.deep.equal(['-1', '+1']);
      await subsystem.disconnect();
    });
  });
});

describe('namespaces of several paths', () => {
  for (const order of ['ab', 'ba']) {
    it(`are resized while they live, as ${order.split('').join(' before ')} tells`, async () => {
      await withFabric(async (fabric) => {
        const subsystem = await fabric.connect(QUIET);
        const events = new MultipathEvents(subsystem);
        const namespace = subsystem.namespace(1);
        const ports = order === 'ab' ? [fabric.a, fabric.b] : [fabric.b, fabric.a];
        const [first, second] = ports as [FakePort, FakePort];
        for (const port of ports) give(port, 1, 4096);
        first.sendNamespacesChanged();
        await settle();
        expect(namespace.lbaCount).to.equal(4096n);
        // What the other one said before is no news.
        second.changeAna('nonOptimized');
        await settle();
        expect(namespace.lbaCount).to.equal(4096n);
        second.sendNamespacesChanged();
        await settle();
        second.changeAna('optimized');
        await settle();
        expect(namespace.lbaCount).to.equal(4096n);
        expect(events.namespaces).to.deep.equal(['~1']);
        expect(events.warnings).to.deep.equal([]);
        await namespace.read(4095, 1);
        await subsystem.disconnect();
      });
    });
  }

  it('are joined by a path that came back with the new size, when the other one tells it, too', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      const events = new MultipathEvents(subsystem);
      for (const port of [fabric.a, fabric.b]) give(port, 1, 4096);
      fabric.a.cut();
      await fabric.pass(1000);
      const namespace = subsystem.namespace(1);
      expect(await pathsOfReads(fabric, () => namespace.read(0, 1))).to.equal('b');
      fabric.b.sendNamespacesChanged();
      await settle();
      expect(namespace.lbaCount).to.equal(4096n);
      expect(events.warnings.join()).to.match(/size in blocks is 4096, known is 2048/);
      expect(fabric.door.callsOf('setPath').at(-1)?.args[1], 'the place of path a').to.equal(0);
      await subsystem.disconnect();
    });
  });

  it('go when the last path has lost them, not before', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      const events = new MultipathEvents(subsystem);
      const namespace = subsystem.namespace(1);
      fabric.a.namespaces.delete(1);
      fabric.a.sendNamespacesChanged();
      await settle();
      expect(await pathsOfReads(fabric, () => namespace.read(0, 1))).to.equal('b');
      fabric.b.namespaces.delete(1);
      fabric.b.sendNamespacesChanged();
      await settle();
      expect(subsystem.namespaces).to.deep.equal([]);
      await rejection(namespace.read(0, 1), DisconnectedError);
      expect(events.namespaces).to.deep.equal(['-1']);
      await subsystem.disconnect();
    });
  });

  it('stay while the only path that has them is lost, and fail when it is given up', async () => {
    await withFabric(async (fabric) => {
      give(fabric.a, 2, 64, UUIDS[1]);
      const options = { ...QUIET, fastIoFailMs: 3000, ctrlLossMs: 10_000 };
      const subsystem = await fabric.connect(options);
      const namespace = subsystem.namespace(2);
      fabric.a.die();
      await settle();
      const read = outcomeOf(namespace.read(0, 1));
      fabric.b.changeAna('nonOptimized');
      await fabric.pass(2500);
      expect([read.now, namespace.removed]).to.deep.equal(['pending', false]);
      await fabric.pass(1000);
      expect(read.now).to.match(/Read/);
      await rejection(namespace.read(0, 1), NvmeStatusError);
      expect(namespace.removed).to.equal(false);
      await fabric.pass(7000);
      expect(stateOf(subsystem, PATH_A)).to.equal('failed');
      expect(namespace.removed).to.equal(true);
      await subsystem.namespace(1).read(0, 1);
      await subsystem.disconnect();
    });
  });

  it('stay when Identify fails in the middle of a rescan', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
      const namespace = subsystem.namespace(1);
      fabric.a.fail('identify 00', 'internalError', 0n, 1);
      fabric.a.sendNamespacesChanged();
      await settle();
      expect(namespace.removed).to.equal(false);
      await namespace.read(0, 1);
      // And when the link goes in the middle of the one after a reconnect.
      fabric.a.cut();
      fabric.a.stopAt('identify 00');
      await fabric.pass(1000);
      fabric.a.cut();
      fabric.a.speak();
      const read = outcomeOf(namespace.read(0, 1));
      await fabric.pass(2000);
      expect([read.now, namespace.removed]).to.deep.equal(['resolved', false]);
      await subsystem.disconnect();
    });
  });

  it('come while the subsystem lives, and are joined', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      const events = new MultipathEvents(subsystem);
      for (const port of [fabric.a, fabric.b]) {
        give(port, 2, 64, UUIDS[1]);
        port.sendNamespacesChanged();
      }
      await settle();
      expect(events.namespaces).to.deep.equal(['+2']);
      const namespace = subsystem.namespace(2);
      fabric.a.die();
      await settle();
      await namespace.read(0, 1);
      expect(events.warnings).to.deep.equal([]);
      await subsystem.disconnect();
    });
  });

  it('have their ANA states although the log lists one that nobody knows', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      const namespace = subsystem.namespace(1);
      fabric.a.setAna('inaccessible', [{ group: 2, changeCount: 1n, state: 1, nsids: [1, 99] }]);
      fabric.a.sendAnaChange();
      await settle();
      expect(await pathsOfReads(fabric, () => namespace.read(0, 1))).to.equal('b');
      await subsystem.disconnect();
    });
  });

  it('are in the group that each controller says', async () => {
    await withFabric(async (fabric) => {
      for (const port of [fabric.a, fabric.b]) {
        port.setAna('optimized', [{ group: 2, changeCount: 1n, state: 3, nsids: [] }]);
      }
      const subsystem = await fabric.connect(QUIET);
      const namespace = subsystem.namespace(1);
      change(fabric.a, { anagrpid: 2 });
      fabric.a.sendNamespacesChanged();
      await settle();
      expect(await pathsOfReads(fabric, () => namespace.read(0, 1))).to.equal('b');
      await subsystem.disconnect();
    });
  });
});
