/**
 * A host ends a controller of its own through another one, and success means that nothing of it can write any more: here, and where
 * several targets share a file (docs/stale-writes.md).
 */
import { expect } from 'chai';
import type { QueueId } from '../../../native/index.ts';
import { AsyncEventResult } from '../../../native/wire/aer.ts';
import { FeatureId } from '../../../native/wire/features.ts';
import { CrossControllerResetLog, LogId } from '../../../native/wire/logs.ts';
import { AdminOpcode } from '../../../native/wire/opcodes.ts';
import { CrossControllerResetCommand } from '../../../native/wire/sqe.ts';
import { IMMEDIATE_MS } from '../../../target/cross-controller-reset.ts';
import { LOOK_MS, WAIT_MS, WATCH_MS } from '../../../target/fences.ts';
import { markOf } from '../../../target/life.ts';
import type { LifeName } from '../../../target/life.ts';
import { HOST_ID, HOST_NQN, NQN, Rig, settle } from './support.ts';
import type { Answer, HostQueue } from './support.ts';

const OTHER_HOST = 'nqn.2014-08.org.nvmexpress:uuid:99999999-2222-3333-4444-555555555555';
const IMMEDIATE = 0b111n;
const EVENT_BIT = 1 << 20;
const FOREIGN: LifeName = { cntlid: 5000, ciu: 7, cirn: 0x1122_3344_5566_7788n };

function command({ cntlid, ciu, cirn }: LifeName): Uint8Array {
  return CrossControllerResetCommand.encode({
    opcode: AdminOpcode.crossControllerReset,
    psdt: 1,
    cid: 77,
    sgl1: Uint8Array.from({ length: 16 }, (_, index) => (index === 15 ? 0x40 : 0)),
    icid: cntlid,
    ciu,
    cirn,
  });
}

async function lifeOf(admin: HostQueue): Promise<LifeName> {
  const { cntlid, ciu, cirn } = await admin.identifyController();
  return { cntlid, ciu, cirn };
}

async function entries(admin: HostQueue, lsp = 0) {
  const { data } = await admin.log(LogId.crossControllerReset, 4096, { lsp });
  const page = CrossControllerResetLog.decode(data);
  return page.entries.slice(0, page.ne);
}

function markFor(name: LifeName, purpose: 'alive' | 'wanted', hostNqn = HOST_NQN): bigint {
  return markOf(NQN, { ...name, hostNqn, hostId: HOST_ID }, purpose);
}

describe('Cross-Controller Reset', () => {
  let rig: Rig;
  let source: HostQueue;
  let impacted: HostQueue;
  let life: LifeName;
  /** Queues that native keeps, because a backing still has a command of theirs. */
  let held: Set<QueueId>;

  async function start(subsystem: object = { namespaces: [{ memory: '1M' }] }): Promise<void> {
    rig = await Rig.start({
      ports: [{ address: '127.0.0.1' }],
      subsystems: [{ nqn: NQN, ...subsystem }],
    });
    held = new Set();
    rig.door.onCloseQueue = (queue) => {
      if (!held.has(queue)) rig.door.endQueue(queue, 'closed by us');
    };
    source = await rig.host();
    impacted = await rig.host();
    life = await lifeOf(impacted);
  }

  const reset = (name: LifeName = life): Promise<Answer> => source.send(command(name));

  /** For a command that is not answered at once. */
  async function resetAndWait(ms: number, name: LifeName = life): Promise<Answer> {
    const tag = source.post(command(name));
    await settle();
    expect(source.answered(tag), 'answered too soon').to.be.undefined;
    rig.clock.advance(ms);
    await settle();
    const answer = source.answered(tag);
    if (!answer) throw new Error(`no answer after ${ms} ms`);
    return answer;
  }

  afterEach(async () => {
    for (const queue of held) rig.door.endQueue(queue, 'its last command ended');
    held.clear();
    await settle();
    await rig.stop();
  });

  describe('of a controller of this target', () => {
    beforeEach(() => start());

    it('is offered, and each life of a controller has a name of its own', async () => {
      const data = await source.identifyController();
      expect(data).to.include({ ccrl: 4, cqt: 10_000, oaesCrossControllerReset: true });
      expect(data.ciu).to.be.within(1, 255);
      expect(data.cirn).not.to.equal(0n);
      expect(life.cirn).not.to.equal(data.cirn);
      await impacted.setProperty(0x14, 0x460060);
      await settle();
      await impacted.enable();
      const next = await lifeOf(impacted);
      expect(next.cntlid).to.equal(life.cntlid);
      expect(next.ciu).to.equal((life.ciu % 255) + 1);
      expect(next.cirn).not.to.equal(life.cirn);
    });

    it('is answered with success when the controller has ended', async () => {
      const io = await rig.ioQueue(life.cntlid);
      expect(await reset()).to.include({ status: 'success', result: IMMEDIATE });
      expect([impacted.open, io.open, source.open]).to.deep.equal([false, false, true]);
      expect(await entries(source)).to.deep.equal([]);
      expect(rig.events.at(-1)).to.deep.include('controllerDeleted');
      // And again: it is over.
      expect(await reset()).to.include({ status: 'success', result: IMMEDIATE });
    });

    it('waits for commands in a backing, within the command', async () => {
      const io = await rig.ioQueue(life.cntlid);
      held.add(io.id);
      const tag = source.post(command(life));
      await settle();
      rig.clock.advance(IMMEDIATE_MS - 1);
      await settle();
      expect(source.answered(tag)).to.be.undefined;
      held.clear();
      rig.door.endQueue(io.id, 'its last command ended');
      await settle();
      expect(source.answered(tag)).to.include({ status: 'success', result: IMMEDIATE });
    });

    it('does not wait for connections that take their time to end', async () => {
      const io = await rig.ioQueue(life.cntlid);
      held.add(io.id);
      held.add(impacted.id);
      const tag = source.post(command(life));
      await settle();
      rig.door.quietQueue(impacted.id);
      await settle();
      expect(source.answered(tag)).to.be.undefined;
      rig.door.quietQueue(io.id);
      await settle();
      expect(source.answered(tag)).to.include({ status: 'success', result: IMMEDIATE });
      expect([impacted.open, io.open]).to.deep.equal([true, true]);
      // Its id is not given away meanwhile.
      expect((await lifeOf(await rig.host())).cntlid).not.to.equal(life.cntlid);
    });

    it('goes on in the log page, with an event, when that takes longer', async () => {
      const io = await rig.ioQueue(life.cntlid);
      held.add(io.id);
      await source.setFeature(FeatureId.asyncEventConfiguration, EVENT_BIT);
      const event = await source.requestEvent();
      expect(await resetAndWait(IMMEDIATE_MS)).to.include({ status: 'success', result: 0n });
      const entry = { icid: life.cntlid, ciu: life.ciu, acid: 0xffff };
      expect(await entries(source)).to.deep.equal([
        { ...entry, ccrs: 0, validated: true, initiated: true },
      ]);
      expect((await reset()).status).to.equal('crossControllerResetInProgress');
      // What goes on cannot be removed.
      expect(await entries(source, 1)).to.have.length(1);
      expect(await entries(source)).to.have.length(1);
      expect(source.answered(event)).to.be.undefined;
      held.clear();
      rig.door.endQueue(io.id, 'its last command ended');
      await settle();
      const told = Buffer.alloc(8);
      told.writeBigUInt64LE(source.answered(event)?.result ?? 0n);
      expect(AsyncEventResult.decode(told)).to.deep.equal({ type: 2, info: 0xf4, lid: 0x1e });
      expect((await entries(source))[0]).to.include({ ...entry, ccrs: 1 });
      // This reading still shows it, the next does not.
      expect(await entries(source, 1)).to.have.length(1);
      expect(await entries(source)).to.deep.equal([]);
    });

    it('of an old life says that it is over, and leaves the new one alone', async () => {
      await impacted.setProperty(0x14, 0x460060);
      await settle();
      await impacted.enable();
      expect(await reset()).to.include({ status: 'success', result: IMMEDIATE });
      expect(impacted.open).to.be.true;
    });

    it('of a life in the middle of a controller reset waits for its queues', async () => {
      const io = await rig.ioQueue(life.cntlid);
      held.add(io.id);
      await impacted.setProperty(0x14, 0x460060);
      await settle();
      const tag = source.post(command(life));
      await settle();
      expect(source.answered(tag)).to.be.undefined;
      held.clear();
      rig.door.endQueue(io.id, 'its last command ended');
      await settle();
      expect(source.answered(tag)).to.include({ status: 'success', result: IMMEDIATE });
    });

    it('of itself is refused', async () => {
      const answer = await reset(await lifeOf(source));
      expect([answer.status, answer.dnr]).to.deep.equal(['invalidField', true]);
      expect(source.open).to.be.true;
    });

    it('of a controller of another host is refused', async () => {
      const stranger = await rig.host({}, { hostnqn: OTHER_HOST });
      expect((await reset(await lifeOf(stranger))).status).to.equal('invalidControllerId');
      expect(stranger.open).to.be.true;
      const twin = await rig.host({}, { hostid: Uint8Array.from(HOST_ID).fill(9) });
      expect((await reset(await lifeOf(twin))).status).to.equal('invalidControllerId');
      expect(twin.open).to.be.true;
    });

    it('more than CCRL at once are refused, and a place is free again afterwards', async () => {
      const others: LifeName[] = [];
      for (let index = 0; index < 5; index++) {
        const admin = await rig.host();
        const name = await lifeOf(admin);
        held.add((await rig.ioQueue(name.cntlid)).id);
        others.push(name);
      }
      const tags = others.slice(0, 4).map((name) => source.post(command(name)));
      await settle();
      const [, , , , fifth] = others as [LifeName, LifeName, LifeName, LifeName, LifeName];
      const refused = await reset(fifth);
      expect([refused.status, refused.dnr]).to.deep.equal(['crossControllerResetLimit', false]);
      for (const queue of held) rig.door.endQueue(queue, 'its last command ended');
      held.clear();
      await settle();
      for (const tag of tags) expect(source.answered(tag)?.result).to.equal(IMMEDIATE);
      expect(await reset(fifth)).to.include({ status: 'success', result: IMMEDIATE });
    });

    it('is for I/O controllers alone', async () => {
      const discovery = await rig.host({}, { subnqn: 'nqn.2014-08.org.nvmexpress.discovery' });
      expect((await discovery.send(command(life))).status).to.equal('invalidOpcode');
      expect(await discovery.identifyController()).to.include({
        ccrl: 0,
        ciu: 0,
        cirn: 0n,
        cqt: 0,
      });
    });

    it('the target says when a backing is slower than the command quiesce time', async () => {
      const io = await rig.ioQueue(life.cntlid);
      held.add(io.id);
      await impacted.disconnect();
      rig.clock.advance(9_999);
      await settle();
      const message = (): string | undefined => rig.log.find((line) => line.includes('quiesce'));
      expect(message()).to.be.undefined;
      rig.clock.advance(1);
      await settle();
      expect(message()).to.contain('commandQuiesceMs');
    });
  });

  describe('of a controller id of another target', () => {
    const range = { cntlids: { first: 1, last: 100 } };

    it('is refused where no namespace is shared', async () => {
      await start({ ...range, namespaces: [{ memory: '1M' }] });
      const answer = await reset(FOREIGN);
      expect([answer.status, answer.dnr]).to.deep.equal(['invalidControllerId', true]);
    });

    it('is refused where a shared backing may be written to from other machines', async () => {
      await start({ ...range, namespaces: [{ path: '/dev/sdz', shared: true }] });
      expect(rig.warnings[0]?.[0]).to.contain('cannot have their writes fenced');
      expect((await reset(FOREIGN)).status).to.equal('invalidControllerId');
      const [, fields] = rig.warnings.at(-1) ?? [];
      expect(fields).to.have.property('reason').that.contains('/dev/sdz is shared');
    });

    it('ids are given from the range of this target', async () => {
      await start({ cntlids: { first: 40, last: 41 }, namespaces: [{ memory: '1M' }] });
      expect([(await lifeOf(source)).cntlid, life.cntlid]).to.deep.equal([40, 41]);
      const third = await rig.queue(0);
      expect((await third.connect()).status).to.equal('connectBusy');
    });
  });

  describe('where targets share a file', () => {
    const shared = {
      cntlids: { first: 1, last: 100 },
      namespaces: [{ path: '/srv/shared.img', shared: true }],
    };
    beforeEach(() => start(shared));

    const marks = (): bigint[] => [...rig.door.marks.values()].flatMap((set) => [...set]);

    it('a life is marked on every shared backing while it may write, and only then', async () => {
      const own = markFor(life, 'alive');
      expect(marks()).to.include(own);
      const io = await rig.ioQueue(life.cntlid);
      held.add(io.id);
      await impacted.disconnect();
      // Its last command is still in the backing.
      expect(marks()).to.include(own);
      held.clear();
      rig.door.endQueue(io.id, 'its last command ended');
      await settle();
      expect(marks()).not.to.include(own);
      expect(marks()).to.have.length(1);
    });

    it('a backing that is added has the marks before the first command can reach it', async () => {
      const order: string[] = [];
      rig.door.onSetMark = () => order.push('mark');
      rig.door.onOperation = (name, operation) => {
        order.push(name);
        rig.door.endOperation(operation);
      };
      await rig.target.addNamespace(NQN, { path: '/srv/second.img', shared: true });
      expect(order).to.deep.equal(['mark', 'mark', 'setNamespace']);
    });

    it('a namespace that takes no marks cannot be added, and a controller without them not enabled', async () => {
      rig.door.onSetMark = () => {
        throw new Error('no locks available');
      };
      let failure: unknown;
      await rig.target
        .addNamespace(NQN, { path: '/srv/second.img', shared: true })
        .catch((error: unknown) => (failure = error));
      expect(String(failure)).to.contain('no locks available');
      expect(rig.door.backings.size).to.equal(1);
      const third = await rig.queue(0);
      await third.connect();
      await third.enable();
      expect((await third.getProperty(0x1c)).result & 0b11n).to.equal(0b10n);
    });

    it('one that is alive elsewhere is asked to end, and reported when its mark is gone', async () => {
      rig.door.marksOfOthers.add(markFor(FOREIGN, 'alive'));
      expect(await resetAndWait(IMMEDIATE_MS, FOREIGN)).to.include({
        status: 'success',
        result: 0n,
      });
      expect(marks()).to.include(markFor(FOREIGN, 'wanted'));
      expect((await entries(source))[0]).to.include({ icid: FOREIGN.cntlid, ccrs: 0 });
      rig.door.marksOfOthers.clear();
      rig.clock.advance(LOOK_MS);
      await settle();
      expect((await entries(source))[0]).to.include({ icid: FOREIGN.cntlid, ccrs: 1 });
      expect(marks()).not.to.include(markFor(FOREIGN, 'wanted'));
    });

    it('one whose mark is gone within the command is answered at once', async () => {
      expect(await reset(FOREIGN)).to.include({ status: 'success', result: IMMEDIATE });
      rig.door.marksOfOthers.add(markFor(FOREIGN, 'alive'));
      const tag = source.post(command(FOREIGN));
      await settle();
      rig.door.marksOfOthers.clear();
      rig.clock.advance(LOOK_MS);
      await settle();
      expect(source.answered(tag)).to.include({ status: 'success', result: IMMEDIATE });
    });

    it('one that does not end fails after a while, and can be asked for again', async () => {
      rig.door.marksOfOthers.add(markFor(FOREIGN, 'alive'));
      await resetAndWait(IMMEDIATE_MS, FOREIGN);
      rig.clock.advance(WAIT_MS);
      await settle();
      expect((await entries(source, 1))[0]).to.include({ icid: FOREIGN.cntlid, ccrs: 2 });
      expect(marks()).not.to.include(markFor(FOREIGN, 'wanted'));
      rig.door.marksOfOthers.clear();
      expect(await reset(FOREIGN)).to.include({ status: 'success', result: IMMEDIATE });
    });

    it('an id of our own that we do not know is looked for too: ranges may be wrong', async () => {
      const unknown = { ...life, cirn: life.cirn + 1n };
      rig.door.marksOfOthers.add(markFor(unknown, 'alive'));
      expect((await resetAndWait(IMMEDIATE_MS, unknown)).result).to.equal(0n);
      expect(impacted.open).to.be.true;
    });

    it('what another host may be alive as is not seen, nor ended, by this one', async () => {
      rig.door.marksOfOthers.add(markFor(life, 'wanted', OTHER_HOST));
      rig.clock.advance(WATCH_MS);
      await settle();
      expect(impacted.open).to.be.true;
    });

    it('a controller here ends when another target asks for it', async () => {
      rig.door.marksOfOthers.add(markFor(life, 'wanted'));
      rig.clock.advance(WATCH_MS - 1);
      await settle();
      expect(impacted.open).to.be.true;
      rig.clock.advance(1);
      await settle();
      expect([impacted.open, source.open]).to.deep.equal([false, true]);
      expect(marks()).not.to.include(markFor(life, 'alive'));
    });

    it('a target that closes leaves no wait behind', async () => {
      rig.door.marksOfOthers.add(markFor(FOREIGN, 'alive'));
      source.post(command(FOREIGN));
      await settle();
      // afterEach stops the rig, which fails when a timer is left.
    });
  });
});
