/** What happens to a live controller by itself: keep alive, events, rescans, the loss of the association. */
import { expect } from 'chai';
import { ControllerEvents } from './recorded-events.ts';
import { NvmeStatusError } from '../../../native/common/errors.ts';
import { DisconnectedError } from '../../../initiator/errors.ts';
import { GetLogPageCommand } from '../../../native/wire/sqe.ts';
import { viewOf } from '../../../native/wire/layout.ts';
import { UUIDS, fakeNamespace } from './fake-controller.ts';
import type { FakeController } from './fake-controller.ts';
import { makeBench, rejection, settle } from './support.ts';

const NOTICE = 2;
const NAMESPACE_CHANGED_LOG = 4;

function changedLog(peer: FakeController, nsids: readonly number[]): void {
  const page = new Uint8Array(4096);
  nsids.forEach((nsid, index) => {
    viewOf(page).setUint32(index * 4, nsid, true);
  });
  peer.logs.set(NAMESPACE_CHANGED_LOG, page);
}

describe('keep alive', () => {
  it('is sent every half timeout, and ends with the controller', async () => {
    const { clock, peer, connect } = makeBench();
    const controller = await connect({ keepAliveMs: 4000 });
    peer.log.length = 0;
    for (let i = 0; i < 5; i += 1) {
      clock.advance(2000);
      await settle();
    }
    expect(peer.log).to.deep.equal(new Array(5).fill('keepAlive'));
    clock.advance(1999);
    await settle();
    expect(peer.log).to.have.length(5);
    await controller.disconnect();
    expect(clock.pending).to.equal(0);
  });

  it('with a timeout of 0 is not sent', async () => {
    const { clock, peer, connect } = makeBench();
    const controller = await connect({ keepAliveMs: 0 });
    clock.advance(1_000_000);
    await settle();
    expect(peer.log).not.to.include('keepAlive');
    expect(clock.pending).to.equal(0);
    await controller.disconnect();
  });

  it('without an answer ends the association, and says so once', async () => {
    const { door, clock, peer, connect } = makeBench();
    const controller = await connect({ keepAliveMs: 4000, commandTimeoutMs: 0 });
    const events = new ControllerEvents(controller);
    peer.hold = (name) => name === 'keepAlive' || name === 'read';
    const reading = rejection(controller.namespace(1).read(0, 1), DisconnectedError);
    clock.advance(2000);
    await settle();
    clock.advance(4000);
    await reading;
    await settle();
    expect(controller.state).to.equal('lost');
    expect(events.disconnected).to.have.length(1);
    expect(events.disconnected[0]?.message).to.contain('Keep Alive failed');
    expect(door.queues.size).to.equal(0);
    expect(door.devices.size).to.equal(0);
    expect(clock.pending).to.equal(0);
    await controller.disconnect();
    expect(controller.state).to.equal('lost');
  });

  it('refused ends the association', async () => {
    const { clock, peer, connect } = makeBench();
    const controller = await connect({ keepAliveMs: 4000 });
    const events = new ControllerEvents(controller);
    peer.fail('keepAlive', 'keepAliveExpired');
    clock.advance(2000);
    await settle();
    expect(events.disconnected[0]?.cause).to.be.instanceOf(NvmeStatusError);
    await controller.disconnect();
  });
});

describe('a lost queue', () => {
  it('rejects every command with the reason and closes the others', async () => {
    for (const qid of [0, 1, 2]) {
      const { door, clock, peer, connect } = makeBench();
      const controller = await connect({ queues: 2 });
      const events = new ControllerEvents(controller);
      peer.hold = (name) => name === 'read';
      const ns = controller.namespace(1);
      const reads = [1, 2, 3, 4].map((lba) => rejection(ns.read(lba, 1), DisconnectedError));
      await settle();
      peer.dropQueue(peer.queueOf(qid), 'peer does not answer');
      const failures = await Promise.all(reads);
      await settle();
      // Those of the queue that died say why; the others were closed with it.
      const told = failures.filter(({ message }) => message.includes('peer does not answer'));
      expect(told).to.have.length(qid === 0 ? 0 : 2);
      expect(controller.state).to.equal('lost');
      expect(events.disconnected).to.have.length(1);
      expect(events.disconnected[0]?.message).to.contain('peer does not answer');
      expect(door.queues.size).to.equal(0);
      expect(door.buffers.size).to.equal(0);
      expect(door.started).to.equal(undefined);
      expect(clock.pending).to.equal(0);
      await rejection(ns.read(0, 1), DisconnectedError);
      await rejection(controller.identify(), DisconnectedError);
      await controller.disconnect();
    }
  });

  it('a Keep Alive on its way does not hide why the queue died', async () => {
    const { clock, peer, connect } = makeBench();
    const controller = await connect({ keepAliveMs: 4000 });
    const events = new ControllerEvents(controller);
    peer.hold = (name) => name === 'keepAlive';
    clock.advance(2000);
    await settle();
    peer.dropQueue(peer.queueOf(0), 'peer does not answer');
    await settle();
    expect(events.disconnected).to.have.length(1);
    expect(events.disconnected[0]?.message).to.contain('peer does not answer');
    await controller.disconnect();
  });
});

describe('asynchronous events', () => {
  it('of namespaces lead to a rescan of those in the changed list', async () => {
    const { peer, connect } = makeBench();
    peer.namespaces.set(2, fakeNamespace(1024, 4096, UUIDS[1]));
    const controller = await connect();
    const events = new ControllerEvents(controller);
    const first = controller.namespace(1);
    const second = controller.namespace(2);
    peer.namespaces.set(1, fakeNamespace(4096));
    peer.namespaces.delete(2);
    peer.namespaces.set(3, fakeNamespace(16, 512, UUIDS[2]));
    changedLog(peer, [1, 2, 3]);
    peer.log.length = 0;
    peer.sendEvent(NOTICE, 0, NAMESPACE_CHANGED_LOG);
    await settle();
    const nsids = (list: readonly { nsid: number }[] = []): number[] => list.map((ns) => ns.nsid);
    expect(events.changes).to.have.length(1);
    expect(nsids(events.changes[0]?.added)).to.deep.equal([3]);
    expect(nsids(events.changes[0]?.removed)).to.deep.equal([2]);
    expect(nsids(events.changes[0]?.changed)).to.deep.equal([1]);
    expect(first.lbaCount).to.equal(4096n);
    expect(controller.namespace(1)).to.equal(first);
    expect(second.removed).to.equal(true);
    await rejection(second.read(0, 1), DisconnectedError);
    expect(peer.log[0]).to.equal('getLogPage 04');
    expect(peer.log.at(-1)).to.equal('asyncEventRequest');
    const log = peer.commands.find((command) => peer.nameOf(command) === 'getLogPage 04');
    expect(log && GetLogPageCommand.decode(log.sqe)).to.include({ rae: false, numdl: 1023 });
    await controller.disconnect();
  });

  it('each batch of changes is noticed, also the second and third', async () => {
    const { peer, connect } = makeBench();
    peer.namespaces.set(2, fakeNamespace(16, 512, UUIDS[1]));
    peer.namespaces.set(3, fakeNamespace(16, 512, UUIDS[2]));
    const controller = await connect();
    const events = new ControllerEvents(controller);
    for (const nsid of [1, 2, 3]) {
      peer.namespaces.delete(nsid);
      changedLog(peer, [nsid]);
      peer.sendEvent(NOTICE, 0, NAMESPACE_CHANGED_LOG);
      await settle();
    }
    expect(events.changes.map(({ removed }) => removed[0]?.nsid)).to.deep.equal([1, 2, 3]);
    expect(controller.namespaces).to.deep.equal([]);
    await controller.disconnect();
  });

  it('a full or an empty changed list means all', async () => {
    for (const list of [[0xffff_ffff], []]) {
      const { peer, connect } = makeBench();
      const controller = await connect();
      const events = new ControllerEvents(controller);
      peer.namespaces.set(1, fakeNamespace(64));
      changedLog(peer, list);
      peer.sendEvent(NOTICE, 0, NAMESPACE_CHANGED_LOG);
      await settle();
      expect(events.changes[0]?.changed.map(({ nsid }) => nsid)).to.deep.equal([1]);
      await controller.disconnect();
    }
  });

  it('a namespace with another identity, or other blocks, is another namespace', async () => {
    for (const next of [fakeNamespace(2048, 512, UUIDS[2]), fakeNamespace(256, 4096)]) {
      const { peer, connect } = makeBench();
      const controller = await connect();
      const before = controller.namespace(1);
      peer.namespaces.set(1, next);
      const change = await controller.rescan();
      expect(change.removed).to.deep.equal([before]);
      expect(change.added).to.deep.equal([controller.namespace(1)]);
      expect(controller.namespace(1)).not.to.equal(before);
      await controller.disconnect();
    }
  });

  it('a rescan that fails keeps the namespaces, and the next one finds them changed', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect();
    const events = new ControllerEvents(controller);
    peer.namespaces.set(2, fakeNamespace(16, 512, UUIDS[1]));
    changedLog(peer, [2]);
    peer.fail('identify 00', 'internalError', 0n, 1);
    peer.sendEvent(NOTICE, 0, NAMESPACE_CHANGED_LOG);
    await settle();
    expect(events.warnings).to.have.length(1);
    expect(controller.namespaces.map(({ nsid }) => nsid)).to.deep.equal([1]);
    await controller.rescan();
    expect(controller.namespaces.map(({ nsid }) => nsid)).to.deep.equal([1, 2]);
    await controller.disconnect();
  });

  it('unknown ones are handed on, and a refused request is a warning', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect();
    const events = new ControllerEvents(controller);
    peer.sendEvent(1, 2, 0);
    await settle();
    expect(events.async).to.deep.equal([{ kind: 'other', type: 1, info: 2, logPage: 0 }]);
    peer.answer('asyncEventRequest', { status: 0x105 });
    await settle();
    expect(events.warnings).to.have.length(1);
    expect(peer.heldNames).to.deep.equal([]);
    expect(controller.state).to.equal('live');
    await controller.disconnect();
  });
});

describe('a scan', () => {
  it('leaves out what cannot be used, with the reason', async () => {
    const { peer, connect } = makeBench();
    peer.namespaces.set(2, fakeNamespace(16, 512, UUIDS[0]));
    peer.namespaces.set(3, {
      ...fakeNamespace(16, 512, UUIDS[1]),
      identify: { lbaf: [{ ms: 8, lbads: 9, rp: 0 }] },
    });
    peer.namespaces.set(4, {
      ...fakeNamespace(16, 512, UUIDS[2]),
      identify: { lbaf: [{ ms: 0, lbads: 40, rp: 0 }] },
    });
    peer.namespaces.set(5, { ...fakeNamespace(16, 512), identify: { ncap: 0n } });
    const controller = await connect();
    expect(controller.namespaces.map(({ nsid }) => nsid)).to.deep.equal([1]);
    expect(controller.skippedNamespaces.map(({ nsid }) => nsid)).to.deep.equal([2, 3, 4]);
    expect(controller.skippedNamespaces[0]?.reason).to.contain('identity as namespace 1');
    expect(controller.skippedNamespaces[1]?.reason).to.contain('metadata');
    expect(() => controller.namespace(4)).to.throw('2^40');
    await controller.disconnect();
  });

  it('goes beyond 1024 namespaces', async () => {
    const { peer, connect } = makeBench();
    peer.controller = { ...peer.controller, nn: 4096, mnan: 4096 };
    peer.namespaces.clear();
    for (let nsid = 1; nsid <= 1030; nsid += 1) {
      const tail = nsid.toString(16).padStart(12, '0');
      peer.namespaces.set(nsid, fakeNamespace(1, 512, `11111111-1111-4111-8111-${tail}`));
    }
    const controller = await connect();
    expect(controller.namespaces).to.have.length(1030);
    expect(peer.log.filter((name) => name === 'identify 02')).to.have.length(2);
    await controller.disconnect();
  });
});
