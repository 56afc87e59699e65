/** What hosts with other paths are told before their associations end, and how long it may take. */
import { expect } from 'chai';
import { NQN, Rig, settle } from './support.ts';
import type { HostQueue } from './support.ts';
import { A, start, statesAt } from './ana-support.ts';

const OPTIMIZED = 1;
const INACCESSIBLE = 3;
const ANA_EVENT = 0x0c0302n;

describe('farewell', () => {
  let rig: Rig;
  let host: HostQueue;
  let event: number;

  /** A host that hears of ANA and reads the log. */
  async function follower(port = 4420): Promise<HostQueue> {
    const admin = await rig.host({}, {}, { port });
    await admin.setFeature(0x0b, 1 << 11);
    await admin.log(0x0c, 4096);
    return admin;
  }

  /** Whether it has ended by now. */
  function follow(ending: Promise<unknown>): { over: boolean } {
    const seen = { over: false };
    void ending.then(() => {
      seen.over = true;
    });
    return seen;
  }

  /** How many reads native has of the queue whenever it is asked. */
  function count(io: HostQueue, reads: () => number): void {
    rig.door.queueStatistics = () => [
      {
        ...{ queue: io.id, reactor: 0, reads: reads(), writes: 0, others: 0, errors: 0 },
        ...{ bytesRead: 0, bytesWritten: 0, latency: [] },
      },
    ];
  }

  /** Time for their I/O to come to rest, in the steps that the target looks in. */
  async function rest(): Promise<void> {
    for (let step = 0; step < 3; step++) {
      rig.clock.advance(5);
      await settle();
    }
  }

  beforeEach(async () => {
    rig = await start();
    host = await follower();
    event = await host.requestEvent();
  });
  afterEach(() => rig.stop());

  it('tells hosts to take their other paths, serves them meanwhile, and ends when they have', async () => {
    const { cntlid } = await host.identifyController();
    const io = await rig.ioQueue(cntlid);
    let reads = 7;
    count(io, () => reads++);
    const closing = follow(rig.target.close());
    await settle();
    expect(host.answered(event)?.result).to.equal(ANA_EVENT);
    expect(rig.door.callsOf('setAccess'), 'refuses no I/O').to.deep.equal([]);
    expect(await statesAt(host)).to.deep.equal({ 1: INACCESSIBLE, 7: INACCESSIBLE });
    // Some still comes.
    await rest();
    expect([host.open, closing.over]).to.deep.equal([true, false]);
    count(io, () => reads);
    await rest();
    expect([host.open, closing.over]).to.deep.equal([false, true]);
  });

  it('waits a quarter of a second for those that do not read the log, and no longer', async () => {
    const closing = follow(rig.target.close());
    await settle();
    rig.clock.advance(249);
    await settle();
    expect(closing.over).to.equal(false);
    rig.clock.advance(1);
    await settle();
    await rest();
    expect(closing.over).to.equal(true);
  });

  it('waits a tenth of a second for I/O that goes on, and no longer', async () => {
    const { cntlid } = await host.identifyController();
    const io = await rig.ioQueue(cntlid);
    let reads = 0;
    count(io, () => reads++);
    const closing = follow(rig.target.close());
    await settle();
    await host.log(0x0c, 4096);
    for (let ms = 0; ms < 95; ms += 5) {
      rig.clock.advance(5);
      await settle();
    }
    expect(closing.over).to.equal(false);
    await rest();
    expect(closing.over).to.equal(true);
  });

  it('does not keep a target whose hosts follow no ANA, or that has none', async () => {
    await host.disconnect();
    const deaf = await rig.host();
    await deaf.log(0x0c, 4096);
    const unread = await rig.host();
    await unread.setFeature(0x0b, 1 << 11);
    const closing = follow(rig.target.close());
    await settle();
    expect(closing.over).to.equal(true);
  });

  it('ends with the last host that leaves by itself', async () => {
    const closing = follow(rig.target.close());
    await settle();
    await host.disconnect();
    await rest();
    expect(closing.over).to.equal(true);
  });

  it('is said at a port that is removed, at that one alone', async () => {
    const other = await follower(4421);
    const quiet = await other.requestEvent();
    const removal = follow(rig.target.removePort('127.0.0.1', 4420));
    await settle();
    expect(await statesAt(host)).to.deep.equal({ 1: INACCESSIBLE, 7: INACCESSIBLE });
    expect(await statesAt(other)).to.deep.equal({ 1: OPTIMIZED, 7: OPTIMIZED });
    await rest();
    expect(removal.over).to.equal(true);
    expect([host.open, other.open, other.answered(quiet)]).to.deep.equal([false, true, undefined]);
    await rig.target.addPort({ address: '127.0.0.1', port: 4420 });
    expect(await statesAt(await follower())).to.deep.equal({ 1: OPTIMIZED, 7: OPTIMIZED });
  });

  it('is said by a drain once its time is over; who is left until it is resumed hears that too', async () => {
    const drained = follow(rig.target.drain(1000));
    await settle();
    expect(host.answered(event)).to.equal(undefined);
    rig.clock.advance(1000);
    await settle();
    expect(host.answered(event)?.result).to.equal(ANA_EVENT);
    expect(await statesAt(host)).to.deep.equal({ 1: INACCESSIBLE, 7: INACCESSIBLE });
    const back = await host.requestEvent();
    rig.target.resume();
    await settle();
    expect(host.answered(back)?.result).to.equal(ANA_EVENT);
    expect(await statesAt(host)).to.deep.equal({ 1: OPTIMIZED, 7: OPTIMIZED });
    await rest();
    expect([drained.over, host.open]).to.deep.equal([true, true]);
  });

  it('leaves states that refuse I/O as they are', async () => {
    await rig.target.setAnaState(NQN, { group: 7, state: 'persistent-loss', port: A });
    await host.log(0x0c, 4096);
    const closing = follow(rig.target.close());
    await settle();
    expect(await statesAt(host)).to.deep.equal({ 1: INACCESSIBLE, 7: 4 });
    await rest();
    expect(closing.over).to.equal(true);
  });
});
