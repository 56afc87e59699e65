/** Which reactor takes a queue: over a simulated load and a clock turned by hand, then through a target with ports of its own cores. */
import { expect } from 'chai';
import { ManualClock } from '../../../native/common/clock.ts';
import type { ReactorInfo } from '../../../native/index.ts';
import { MEASURE_MS, Placement, QUEUE_SHARE, TOLERANCE } from '../../../target/placement.ts';
import type { Place, PlacementRule } from '../../../target/placement.ts';
import { Target } from '../../../target/index.ts';
import { MEMORY, Rig } from './support.ts';

/** Reactors whose busy share a test sets; a measurement sees the shares of the time since the one before. */
class Simulation {
  readonly clock = new ManualClock();
  readonly placement: Placement;
  readonly #busyNs: number[];
  readonly all: readonly number[];
  measurements = 0;

  constructor(reactors: number, rule?: PlacementRule) {
    this.#busyNs = Array.from({ length: reactors }, () => 0);
    this.all = [...this.#busyNs.keys()];
    this.placement = new Placement({
      clock: this.clock,
      rule,
      measure: () => {
        this.measurements++;
        return this.#busyNs.map((busy, index): ReactorInfo => ({
          ...{ index, core: index + 10, busyNs: BigInt(Math.round(busy)) },
          ...{ idleNs: 0n, cpuNs: 0n, queues: 0 },
        }));
      },
    });
  }

  /** A second in which the reactors were busy for these shares of it. */
  second(...shares: readonly number[]): void {
    shares.forEach((share, reactor) => {
      this.#busyNs[reactor] = (this.#busyNs[reactor] ?? 0) + share * MEASURE_MS * 1e6;
    });
    this.clock.advance(MEASURE_MS);
  }

  io(among: readonly number[] = this.all): Place {
    return this.placement.place(false, among);
  }

  admin(among: readonly number[] = this.all): Place {
    return this.placement.place(true, among);
  }

  burst(count: number, among: readonly number[] = this.all): Place[] {
    return Array.from({ length: count }, () => this.io(among));
  }

  get ioQueues(): number[] {
    return this.placement.view().map(({ ioQueues }) => ioQueues);
  }

  get adminQueues(): number[] {
    return this.placement.view().map(({ adminQueues }) => adminQueues);
  }
}

const reactorsOf = (places: readonly Place[]): number[] => places.map(({ reactor }) => reactor);

describe('placement', () => {
  it('spreads queues evenly over idle reactors, the lowest index first', () => {
    const simulation = new Simulation(3);
    expect(reactorsOf(simulation.burst(6))).to.deep.equal([0, 1, 2, 0, 1, 2]);
  });

  it('spreads a burst of 64 connects', () => {
    const simulation = new Simulation(4);
    simulation.burst(64);
    expect(simulation.ioQueues).to.deep.equal([16, 16, 16, 16]);
  });

  it('spares a greedy reactor, until a burst has made the others as busy', () => {
    const simulation = new Simulation(4);
    simulation.io();
    simulation.second(1, 0, 0, 0);
    simulation.burst(12);
    expect(simulation.ioQueues).to.deep.equal([1, 4, 4, 4]);
    simulation.burst(52);
    const [greedy = 0, ...others] = simulation.ioQueues;
    expect(greedy).to.be.within(2, 8);
    expect(Math.max(...others) - Math.min(...others)).to.be.at.most(1);
  });

  it('goes by the load, not by the number of queues', () => {
    const simulation = new Simulation(2);
    simulation.burst(8);
    // Four queues that do nothing here, four that work there.
    simulation.second(0.02, 0.7);
    expect(reactorsOf(simulation.burst(6))).to.deep.equal([0, 0, 0, 0, 0, 0]);
  });

  it('takes loads within the tolerance for equal: then the number of queues counts', () => {
    const simulation = new Simulation(2);
    const [first] = simulation.burst(2);
    first?.release();
    simulation.second(0.5 + TOLERANCE * 0.9, 0.5);
    expect(simulation.io().reactor).to.equal(0);
    simulation.second(0.5 + TOLERANCE * 1.1, 0.5);
    expect(simulation.io().reactor).to.equal(1);
  });

  it('goes by the last measurement alone', () => {
    const simulation = new Simulation(2);
    simulation.burst(2);
    simulation.second(0.9, 0.1);
    simulation.second(0.1, 0.9);
    expect(reactorsOf(simulation.burst(2))).to.deep.equal([0, 0]);
    // Asleep: nothing is reported at all.
    simulation.second(0, 0);
    expect(simulation.placement.view().map(({ busyShare }) => busyShare)).to.deep.equal([0, 0]);
  });

  it('measures by its clock, not when it places or is looked at', () => {
    const simulation = new Simulation(2);
    const before = simulation.measurements;
    simulation.burst(64);
    simulation.placement.view();
    expect(simulation.measurements).to.equal(before);
    simulation.clock.advance(MEASURE_MS * 3);
    expect(simulation.measurements).to.equal(before + 3);
    simulation.placement.stop();
    expect(simulation.clock.pending).to.equal(0);
  });

  it('counts what was placed since the measurement, and no longer than that', () => {
    const simulation = new Simulation(2);
    simulation.second(0.25, 0.25);
    const place = simulation.io();
    const load = (): number | undefined => simulation.placement.view([0])[0]?.load;
    expect(load()).to.equal(0.25 + QUEUE_SHARE);
    place.release();
    expect(load()).to.equal(0.25);
    const stays = simulation.io();
    simulation.second(0.25, 0.25);
    expect(load()).to.equal(0.25);
    // It is within the measured share by now.
    stays.release();
    expect(load()).to.equal(0.25);
  });

  it('places a host that comes back by the load of now', () => {
    const simulation = new Simulation(2);
    const [first] = simulation.burst(2);
    expect(first?.reactor).to.equal(0);
    simulation.second(0.8, 0.1);
    first?.release();
    expect(simulation.io().reactor).to.equal(1);
  });

  it('keeps its balance in a storm of reconnects, and forgets nobody twice', () => {
    const simulation = new Simulation(4);
    let places = simulation.burst(64);
    for (let storm = 0; storm < 20; storm++) {
      for (const place of places) {
        place.release();
        place.release();
      }
      expect(simulation.ioQueues).to.deep.equal([0, 0, 0, 0]);
      places = simulation.burst(64);
      expect(simulation.ioQueues).to.deep.equal([16, 16, 16, 16]);
      if (storm % 3 === 0) simulation.second(0.5, 0.5, 0.5, 0.5);
    }
    // A busy core gets less of the next storm.
    simulation.second(1, 0.2, 0.2, 0.2);
    for (const place of places) place.release();
    places = simulation.burst(30);
    expect(simulation.ioQueues).to.deep.equal([0, 10, 10, 10]);
  });

  it('decides the same again in the same circumstances', () => {
    const run = (): number[] => {
      const simulation = new Simulation(5);
      const places: Place[] = [];
      let state = 7;
      const next = (): number => (state = (state * 1103515245 + 12345) % 2 ** 31) / 2 ** 31;
      for (let step = 0; step < 500; step++) {
        if (next() < 0.1) simulation.second(next(), next(), next(), next(), next());
        if (next() < 0.4) places[Math.floor(next() * places.length)]?.release();
        places.push(next() < 0.2 ? simulation.admin() : simulation.io());
      }
      return reactorsOf(places);
    };
    expect(run()).to.deep.equal(run());
  });

  it('puts admin queues where the fewest I/O queues are, however busy', () => {
    const simulation = new Simulation(2);
    expect(simulation.io().reactor).to.equal(0);
    simulation.second(0, 0.9);
    expect(simulation.admin().reactor).to.equal(1);
    expect(simulation.admin().reactor).to.equal(1);
    expect(simulation.adminQueues).to.deep.equal([0, 2]);
  });

  it('spreads admin queues among equals, and does not count them as load', () => {
    const simulation = new Simulation(3);
    expect(reactorsOf([simulation.admin(), simulation.admin(), simulation.admin()])).to.deep.equal([
      0, 1, 2,
    ]);
    expect(simulation.placement.view().map(({ load }) => load)).to.deep.equal([0, 0, 0]);
    simulation.admin();
    // Of equally loaded reactors, that with fewer admin queues.
    expect(simulation.io().reactor).to.equal(1);
  });

  it('keeps to the cores of a port, and sees on them what other ports placed', () => {
    const simulation = new Simulation(4);
    const left = [0, 1, 2];
    const right = [2, 3];
    simulation.burst(9, left);
    expect(simulation.ioQueues).to.deep.equal([3, 3, 3, 0]);
    expect(reactorsOf(simulation.burst(3, right))).to.deep.equal([3, 3, 3]);
    expect(simulation.admin([2]).reactor).to.equal(2);
    simulation.second(0.1, 0.1, 0.9, 0.9);
    simulation.burst(8, left);
    expect(simulation.ioQueues).to.deep.equal([7, 7, 3, 3]);
  });

  it('can be overruled, within what the port has', () => {
    const last: PlacementRule = (_admin, loads) => loads.at(-1)?.reactor ?? 0;
    expect(new Simulation(2, last).io().reactor).to.equal(1);
    expect(new Simulation(3, last).io([0, 1]).reactor).to.equal(1);
    const wrong = new Simulation(8, () => 7);
    expect(() => wrong.io([0, 1])).to.throw(
      RangeError,
      'placement chose reactor 7, which is none of 0, 1',
    );
    expect(wrong.ioQueues.every((count) => count === 0)).to.equal(true);
  });
});

describe('placement in a target', () => {
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

  it('keeps the queues of a port on its cores', async () => {
    const rig = await Rig.start({
      ...MEMORY,
      cores: [4, 5, 6],
      ports: [{ address: '127.0.0.1', cores: [6] }],
    });
    try {
      await rig.host();
      for (let qid = 1; qid <= 4; qid++) await rig.ioQueue(1, qid);
      const view = rig.target.placement;
      expect(view.map(({ core, ioQueues }) => [core, ioQueues])).to.deep.equal([
        [4, 0],
        [5, 0],
        [6, 4],
      ]);
      expect(view.map(({ adminQueues }) => adminQueues)).to.deep.equal([0, 0, 1]);
      expect(rig.target.statistics().reactors.map(({ ports }) => ports)).to.deep.equal([
        [],
        [],
        ['127.0.0.1:4420'],
      ]);
      await rig.target.addPort({ address: '127.0.0.1', port: 4421, cores: [5, 6] });
      expect(rig.target.statistics().reactors.map(({ ports }) => ports.length)).to.deep.equal([
        0, 1, 2,
      ]);
      expect(rig.target.config.ports.map(({ cores }) => cores)).to.deep.equal([[6], [5, 6]]);
    } finally {
      await rig.stop();
    }
  });

  it('refuses a port on cores that the target does not have', async () => {
    const refusal = async (work: Promise<unknown>): Promise<string> => {
      try {
        await work;
      } catch (error) {
        return (error as Error).message;
      }
      return 'taken';
    };
    const ports = (cores: number[]) => [{ address: '127.0.0.1', cores }];
    expect(
      await refusal(Target.start({ ...MEMORY, cores: [2, 3], ports: ports([3, 5]) })),
    ).to.equal(
      'configuration: ports[0].cores[1]: core 5 is none of the target\'s cores 2, 3; name one of these, or add it to the target\'s "cores"',
    );
    expect(await refusal(Target.start({ ...MEMORY, ports: ports([0]) }))).to.match(
      /^configuration: ports\[0\]\.cores\[0\]: core 0 is none of the target's: its reactors are not pinned; write 0 into/,
    );
    expect(await refusal(Target.start({ ...MEMORY, cores: [1], ports: ports([1, 1]) }))).to.equal(
      'configuration: ports[0].cores[1]: core 1 is named twice; name it once',
    );
    expect(await refusal(Target.start({ ...MEMORY, cores: [1], ports: ports([]) }))).to.include(
      'ports[0].cores: needs at least one core; leave it out',
    );
    const rig = await Rig.start({ ...MEMORY, cores: [4, 5] });
    try {
      const late = rig.target.addPort({ address: '127.0.0.1', port: 4421, cores: [4, 7] });
      expect(await refusal(late)).to.match(
        /^port 127\.0\.0\.1:4421: cores: core 7 is none of the target's cores 4, 5; name one/,
      );
      expect(rig.target.config.ports).to.have.length(1);
    } finally {
      await rig.stop();
    }
  });
});
