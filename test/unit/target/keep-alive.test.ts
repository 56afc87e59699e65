import { expect } from 'chai';
import { ManualClock } from '../../../native/common/clock.ts';
import { KeepAlive } from '../../../target/keep-alive.ts';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { AdminOpcode } from '../../../native/wire/opcodes.ts';
import { Sqe } from '../../../native/wire/sqe.ts';
import { Rig, settle } from './support.ts';

describe('keep alive', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start();
  });
  afterEach(() => rig.stop());

  const alive = (): boolean => rig.target.controllers.length === 1;
  const advance = async (ms: number): Promise<void> => {
    rig.clock.advance(ms);
    await settle();
  };

  it('ends the controller and its queues when the host falls silent', async () => {
    await rig.host({ kato: 5000 });
    await rig.ioQueue(1);
    await advance(4999);
    expect(alive()).to.equal(true);
    await advance(1);
    expect(alive()).to.equal(false);
    expect(rig.door.queues.size).to.equal(0);
    expect(rig.events.at(-1)?.[2]).to.equal('keep alive timer expired');
  });

  it('gives the host the whole second in which its timeout ends', async () => {
    await rig.host({ kato: 1 });
    await advance(999);
    expect(alive()).to.equal(true);
    await advance(1);
    expect(alive()).to.equal(false);
    await rig.host({ kato: 1001 });
    await advance(1999);
    expect(alive()).to.equal(true);
    await advance(1);
    expect(alive()).to.equal(false);
  });

  it('goes on as long as Keep Alive comes', async () => {
    const admin = await rig.host({ kato: 5000 });
    for (let second = 0; second < 60; second += 4) {
      await advance(4000);
      expect((await admin.keepAlive()).status).to.equal('success');
    }
    await advance(4999);
    expect(alive()).to.equal(true);
    await advance(1);
    expect(alive()).to.equal(false);
  });

  it('is not prolonged by other commands', async () => {
    const admin = await rig.host({ kato: 5000 });
    await advance(4000);
    await admin.identify({ cns: 1 });
    await advance(1000);
    expect(alive()).to.equal(false);
  });

  it('with timeout 0 has no timer, and refuses Keep Alive', async () => {
    const admin = await rig.host({ kato: 0 });
    expect((await admin.keepAlive()).status).to.equal('keepAliveInvalid');
    await advance(10_000_000);
    expect(alive()).to.equal(true);
    expect((await admin.getFeature(0x0f)).result).to.equal(0n);
  });

  it('can be set and turned off later', async () => {
    const admin = await rig.host({ kato: 5000 });
    expect((await admin.getFeature(0x0f)).result).to.equal(5000n);
    expect((await admin.setFeature(0x0f, 0)).status).to.equal('success');
    await advance(100_000);
    const idle = rig.clock.pending;
    expect(alive()).to.equal(true);
    expect((await admin.getFeature(0x0f)).result).to.equal(0n);
    await admin.setFeature(0x0f, 2500);
    await admin.setFeature(0x0f, 2500);
    expect(rig.clock.pending).to.equal(idle + 1);
    expect((await admin.getFeature(0x0f)).result).to.equal(2500n);
    await advance(2999);
    expect(alive()).to.equal(true);
    await advance(1);
    expect(alive()).to.equal(false);
  });

  it('of the last association never ends the next one', async () => {
    await rig.host({ kato: 5000 });
    await advance(5000);
    const next = await rig.host({ kato: 5000 });
    expect(rig.target.controllers.map(({ cntlid }) => cntlid)).to.deep.equal([2]);
    await advance(4999);
    await next.keepAlive();
    await advance(4999);
    expect(alive()).to.equal(true);
  });

  for (const [kato, lives] of [
    [0, 120_000],
    [1, 1000],
    [5000, 5000],
    [120_000, 120_000],
  ] as const) {
    it(`of a discovery controller: ${kato} ms`, async () => {
      const admin = await rig.host({ kato }, { subnqn: DISCOVERY_NQN });
      await advance(lives - 1);
      expect((await admin.keepAlive()).status).to.equal('success');
      await advance(lives - 1);
      expect(alive()).to.equal(true);
      await advance(1);
      expect(alive()).to.equal(false);
    });
  }

  it('that native has renewed is not over, however late it is looked at', () => {
    const clock = new ManualClock();
    let left = 0;
    const asked: number[] = [];
    const door = {
      openLease: () => 7,
      setLease: (_: number, ms: number) => asked.push(ms),
      leaseLeft: () => left,
      closeLease: () => undefined,
    };
    let expired = 0;
    const keepAlive = new KeepAlive(clock, door, () => {
      expired++;
    });
    left = 1000;
    keepAlive.set(1);
    left = 0.5;
    clock.advance(1000);
    expect(expired).to.equal(0);
    left = 0;
    clock.advance(1);
    expect(expired).to.equal(1);
    expect(clock.pending).to.equal(0);
    keepAlive.set(0xffff_ffff);
    expect(asked).to.deep.equal([1000, 0xffff_ffff]);
  });

  it('comes too late once the time is over: it ends the association instead', async () => {
    const admin = await rig.host({ kato: 5000 });
    await rig.ioQueue(1);
    // The process was stopped: its timers have not run yet.
    rig.door.leaseClock = { now: () => rig.clock.now() + 5000 };
    admin.post(Sqe.encode({ opcode: AdminOpcode.keepAlive, psdt: 1, cid: 9 }));
    await settle();
    expect(alive()).to.equal(false);
    expect(rig.door.queues.size).to.equal(0);
    expect(rig.door.leases.size).to.equal(0);
  });

  it('ends the association when native ended an I/O queue for it', async () => {
    await rig.host({ kato: 5000 });
    const io = await rig.ioQueue(1);
    rig.door.leaseClock = { now: () => rig.clock.now() + 5000 };
    rig.door.endQueue(io.id, 'no Keep Alive came in time');
    await settle();
    expect(alive()).to.equal(false);
    expect(rig.events.at(-1)?.[2]).to.equal('keep alive timer expired');
  });

  it('goes on when an I/O queue ends for another reason', async () => {
    await rig.host({ kato: 5000 });
    const io = await rig.ioQueue(1);
    rig.door.endQueue(io.id, 'gone');
    await settle();
    expect(alive()).to.equal(true);
  });
});
