import { expect } from 'chai';
import type { ReactorInfo } from '../../../native/index.ts';
import { Placement } from '../../../target/placement.ts';
import { MEMORY, Rig } from './support.ts';

function reactor(index: number, busy = 0, idle = 0): ReactorInfo {
  return { index, core: index, busyNs: BigInt(busy), idleNs: BigInt(idle), cpuNs: 0n, queues: 0 };
}

describe('placement', () => {
  it('spreads I/O queues evenly', () => {
    const placement = new Placement();
    const three = [reactor(0), reactor(1), reactor(2)];
    const places = Array.from({ length: 6 }, () => placement.place(false, three));
    expect(places).to.deep.equal([0, 1, 2, 0, 1, 2]);
  });

  it('puts admin queues where the fewest I/O queues are', () => {
    const placement = new Placement();
    const two = [reactor(0), reactor(1)];
    expect(placement.place(false, two)).to.equal(0);
    expect(placement.place(true, two)).to.equal(1);
    expect(placement.place(true, two)).to.equal(1);
    expect(placement.place(false, two)).to.equal(1);
    expect(placement.place(true, two)).to.equal(0);
  });

  it('prefers the core that was less busy lately', () => {
    const placement = new Placement();
    placement.place(false, [reactor(0), reactor(1)]);
    placement.place(false, [reactor(0), reactor(1)]);
    expect(placement.place(false, [reactor(0, 900, 100), reactor(1, 100, 900)])).to.equal(1);
    placement.release(false, 1);
    // Since then the other way round.
    expect(placement.place(false, [reactor(0, 910, 1100), reactor(1, 1100, 910)])).to.equal(0);
  });

  it('forgets queues that are gone', () => {
    const placement = new Placement();
    const two = [reactor(0), reactor(1)];
    placement.place(false, two);
    placement.place(false, two);
    placement.release(false, 0);
    expect(placement.place(false, two)).to.equal(0);
  });

  it('can be overruled, within what is there', () => {
    const last = new Placement((_admin, loads) => loads.length - 1);
    expect(last.place(false, [reactor(0), reactor(1)])).to.equal(1);
    const wrong = new Placement(() => 7);
    expect(() => wrong.place(false, [reactor(0)])).to.throw(RangeError, 'reactor 7');
  });

  it('of a host with eight queues on two cores, and back to nothing when it leaves', async () => {
    const rig = await Rig.start({ ...MEMORY, cores: [0, 1] });
    try {
      const admin = await rig.host();
      for (let qid = 1; qid <= 8; qid++) await rig.ioQueue(1, qid);
      expect(rig.target.placement.map(({ ioQueues }) => ioQueues)).to.deep.equal([4, 4]);
      await admin.disconnect();
      expect(
        rig.target.placement.map(({ ioQueues, adminQueues }) => ioQueues + adminQueues),
      ).to.deep.equal([0, 0]);
    } finally {
      await rig.stop();
    }
  });
});
