/** Data that are wrong in one way each, planted under a whole run: it fails, and says what the block holds. */
import { expect } from 'chai';
import { EventEmitter } from 'node:events';
import { ManualClock } from '../../../native/common/clock.ts';
import type { FaultyTarget } from '../../../tools/failover/faulty-target.ts';
import type { FailoverHost, FailoverHostEvents, IoTarget } from '../../../tools/failover/host.ts';
import { complaints } from '../../../tools/failover/report.ts';
import { runScenario } from '../../../tools/failover/run.ts';
import type { RunOutcome } from '../../../tools/failover/run.ts';
import { parseScenario } from '../../../tools/failover/scenario.ts';
import { FakeIo, LBA, LOAD, pass } from './support.ts';

/** Of one place: LBAs 10 and 11. */
const PLACE = 10;
/** More than a run, and than what it waits for a request that does not end. */
const LONG_MS = 45_000;

/** Writes of the place under a fault, from the first on; true: it was done in place of the write. */
type Plant = (bench: {
  readonly io: FakeIo;
  readonly clock: ManualClock;
  readonly data: Uint8Array;
  /** Of the write before. */
  readonly previous: Uint8Array | undefined;
}) => boolean | Promise<boolean>;

class PlantedHost extends EventEmitter<FailoverHostEvents> implements FailoverHost {
  readonly paths = [{ path: 'a', state: 'live' }] as const;
  readonly io: IoTarget;
  armed = false;

  constructor(memory: FakeIo, clock: ManualClock, plant: Plant) {
    super();
    let previous: Uint8Array | undefined;
    this.io = {
      ...{ lbaSize: memory.lbaSize, lbaCount: memory.lbaCount },
      read: (lba, blocks, options) => memory.read(lba, blocks, options),
      write: async (lba, data) => {
        const planted = this.armed && lba === PLACE;
        const copy = data.slice();
        const done = planted && (await plant({ io: memory, clock, data: copy, previous }));
        if (!done) await memory.write(lba, data);
        if (lba === PLACE) previous = copy;
      },
    };
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

async function run(plant: Plant): Promise<RunOutcome> {
  const clock = new ManualClock();
  const host = new PlantedHost(new FakeIo(clock), clock, plant);
  const unused = (): never => {
    throw new Error('not of this test');
  };
  const target: FaultyTarget = {
    ...{ endpoint: 'a', where: { address: '192.0.2.1', port: 4420, nqn: 'nqn.x' } },
    ...{ refusal: () => undefined, packetFault: unused, faultCounters: unused },
    life: {
      ...{ pid: 1, running: true, standsStill: true, kill: unused, startAgain: unused },
      pause: () => {
        host.armed = true;
        return Promise.resolve();
      },
      resume: () => undefined,
    },
  };
  const scenario = parseScenario(
    { name: 'planted', duration: 1500, faults: [{ kind: 'stop', at: 200, for: 10 }] },
    'test',
  );
  let outcome: RunOutcome | undefined;
  const running = runScenario({
    ...{ scenario, host, targets: [target], nsid: 1, reconnectDelayMs: 1000, clock },
    load: LOAD,
  }).then((done) => (outcome = done));
  for (let waited = 0; waited < LONG_MS && !outcome; waited += 100) await pass(clock, 100);
  return running;
}

function store(io: FakeIo, data: Uint8Array, lba = PLACE): true {
  io.memory.set(data, lba * LBA);
  return true;
}

const never = new Promise<boolean>(() => undefined);

const PLANTS: readonly (readonly [string, Plant, RegExp])[] = [
  [
    'a wrong bit',
    ({ io, data }) => {
      data[100] = (data[100] ?? 0) ^ 1;
      return store(io, data);
    },
    /^LBA 10 holds generation (\d+) of LBA 10, damaged, expected generation \1$/,
  ],
  ['a lost write', () => true, /^LBA 10 holds generation \d+ of LBA 10, expected generation \d+$/],
  [
    'a write that comes again later',
    ({ io, clock, data, previous }) => {
      // After the next one was acknowledged, as a request left behind in a network would.
      if (previous) clock.after(20, () => store(io, previous));
      return store(io, data);
    },
    /^LBA 10 holds generation \d+ of LBA 10, expected generation \d+$/,
  ],
  [
    'a block in the place of another',
    ({ io, data }) => store(io, data, PLACE + 2),
    /^LBA 12 holds generation \d+ of LBA 10, expected generation \d+$/,
  ],
  [
    'a torn block',
    ({ io, data }) => store(io, data.subarray(0, LBA / 2)),
    /^LBA 10 holds generation (\d+) of LBA 10, damaged, expected generation \1$/,
  ],
  ['a request that never ends', () => never, /^1 requests never ended$/],
];

describe('a run whose data are wrong', function () {
  this.timeout(60_000);

  it('is none as long as nothing is planted', async () => {
    const outcome = await run(() => false);
    expect(complaints(outcome)).to.deep.equal([]);
    expect(outcome.result.passed).to.equal(true);
  });

  for (const [name, plant, complaint] of PLANTS) {
    it(`fails, and names ${name}`, async () => {
      const outcome = await run(plant);
      expect(outcome.result.passed).to.equal(false);
      const told = [
        ...outcome.result.broken,
        ...outcome.mismatches.map(
          ({ lba, found, expected }) => `LBA ${lba} holds ${found}, expected ${expected}`,
        ),
      ];
      expect(
        told.filter((text) => complaint.test(text)),
        told.join('\n'),
      ).not.to.have.length(0);
    });
  }
});
