/**
 * What `nvmeof failover-test` is worth: with a bound that is too tight, or a target that does not do what it is told, every
 * kind of fault ends its run with a failure that names it.
 */
import { expect } from 'chai';
import { systemClock } from '../../native/common/clock.ts';
import type { FaultyTarget } from '../../tools/failover/faulty-target.ts';
import { runScenario } from '../../tools/failover/run.ts';
import type { RunOutcome } from '../../tools/failover/run.ts';
import { parseScenario } from '../../tools/failover/scenario.ts';
import type { FaultKind, ScenarioInput } from '../../tools/failover/scenario.ts';
import { withTestBed } from '../../tools/failover/test-bed.ts';
import { fromSource } from '../support/failover.ts';
import { failureOf } from '../support/in-process.ts';

const LOAD = {
  ...{ rate: 500, readPercent: 50, requestBytes: 4096, areaBytes: 1 << 20, depth: 16, seed: 7 },
};
const SETTINGS = { reconnectDelayMs: 100, keepAliveMs: 5000, policy: 'round-robin' } as const;

/** `sabotage` makes something else of a target. */
function run(
  faults: ScenarioInput['faults'],
  duration: number,
  targets: number,
  sabotage: (target: FaultyTarget) => FaultyTarget = (target) => target,
): Promise<RunOutcome> {
  const scenario = parseScenario({ name: 'planted', duration, faults }, 'test');
  return withTestBed(
    { scenario, load: LOAD, settings: SETTINGS, targets, networkNamespaces: false },
    (bed) =>
      runScenario({
        ...{ ...bed, scenario, load: LOAD, clock: systemClock },
        targets: bed.targets.map(sabotage),
      }),
  );
}

const named = ({ result }: RunOutcome): (readonly [string, string])[] =>
  result.faults.map(({ name, broken }) => [name.split(/[ ,]/)[0] ?? '', broken.join('; ')]);

const EVERY_KIND: Readonly<Record<FaultKind, true>> = {
  ...({ kill: true, restart: true, terminate: true, stop: true, blackhole: true } as const),
  ...({ loss: true, duplicate: true, reorder: true, delay: true } as const),
  ...({ ana: true, resize: true, storm: true } as const),
};

const nothing = (): Promise<void> => Promise.resolve();

/** Does nothing of what it is told, and says that it did. */
function idle(target: FaultyTarget): FaultyTarget {
  const { life } = target;
  if (!life) throw new Error('a target of the test has a life');
  const { pid } = life;
  return {
    ...{ endpoint: target.endpoint, where: target.where },
    ...{ refusal: () => undefined, packetFault: () => Promise.resolve(nothing) },
    faultCounters: () => target.faultCounters(),
    life: {
      ...{ pid, running: true, standsStill: false },
      ...{ kill: nothing, startAgain: nothing, pause: nothing, resume: () => undefined },
    },
    ...{ terminate: () => Promise.resolve(nothing), resize: nothing },
    setAnaState: () => Promise.resolve(nothing),
  };
}

describe('a failover test that must fail', function () {
  // What it takes on a quiet machine, ten times.
  this.timeout(120_000);
  fromSource();

  it('does, by the bound of each kind of fault', async () => {
    // Requests come each 2 ms: no stall takes no time at all.
    const bounds = { stallMs: 0 };
    const brief = { for: 100, bounds };
    const faults: ScenarioInput['faults'] = [
      { kind: 'loss', at: 300, drop: 0.2, ...brief },
      { kind: 'duplicate', at: 500, duplicate: 0.5, ...brief },
      { kind: 'reorder', at: 700, reorder: 0.5, ...brief },
      { kind: 'delay', at: 900, delayMs: 3, ...brief },
      ...(['in', 'out', 'both'] as const).map((direction, index) => ({
        ...({ kind: 'blackhole', at: 1100 + index * 400, direction } as const),
        ...brief,
      })),
      { kind: 'stop', at: 2300, ...brief },
      {
        ...{ kind: 'ana', at: 2800, for: 100, state: 'inaccessible' },
        bounds: { ...bounds, detectMs: 0 },
      },
      { kind: 'resize', at: 3100, percent: 150, bounds },
      { kind: 'storm', at: 3300, hosts: 1, rounds: 1, bounds },
      { kind: 'terminate', at: 3800, after: 100, bounds: { ...bounds, recoverMs: 0 } },
      { kind: 'kill', at: 3900, target: 2, bounds: { ...bounds, detectMs: 0 } },
      // The second of them waits for the first one's end: at a target that is starting it would do nothing.
      { kind: 'restart', at: 4000, target: 1, after: 100, bounds },
      { kind: 'restart', at: 4101, target: 1, after: 100, bounds },
    ];
    const outcome = await run(faults, 6000, 3);
    expect(outcome.result.passed).to.equal(false);
    expect(outcome.result.broken).to.deep.equal([]);
    expect(outcome.record.mismatches).to.equal(0);
    const all = named(outcome);
    expect(all.map(([kind]) => kind)).to.deep.equal(faults.map(({ kind }) => kind));
    expect(new Set(all.map(([kind]) => kind))).to.deep.equal(new Set(Object.keys(EVERY_KIND)));
    for (const [kind, text] of all) {
      expect(text, kind).to.match(/no read ended for .*; no write ended for /);
      expect(text, kind).not.to.include('did not happen');
    }
    expect(all[8]?.[1]).to.match(/the host noticed after/);
    expect(all[12]?.[1]).to.match(/the host noticed after/);
    const [before, waited] = outcome.result.faults.slice(-2);
    expect(waited?.beginMs).to.be.at.least(before?.endMs ?? Infinity);
  });

  it('does when targets do not do what they are told', async () => {
    const faults: ScenarioInput['faults'] = [
      { kind: 'kill', at: 300 },
      { kind: 'restart', at: 310, after: 10 },
      { kind: 'stop', at: 340, for: 50 },
      { kind: 'blackhole', at: 400, for: 50 },
      { kind: 'loss', at: 450, for: 50, drop: 0.5 },
      { kind: 'duplicate', at: 500, for: 50, duplicate: 0.5 },
      { kind: 'reorder', at: 550, for: 50, reorder: 0.5 },
      { kind: 'delay', at: 600, for: 50, delayMs: 1 },
      { kind: 'ana', at: 650, for: 50, state: 'inaccessible' },
      { kind: 'resize', at: 700, percent: 150 },
      { kind: 'terminate', at: 750, after: 10 },
    ];
    const outcome = await run(faults, 1000, 2, idle);
    expect(outcome.result.passed).to.equal(false);
    for (const [kind, text] of named(outcome)) {
      expect(text, kind).to.match(/^the fault did not happen: /);
    }
    expect(outcome.record.mismatches).to.equal(0);
  });

  it('ends with the failure of a storm that cannot connect', async () => {
    const failure = await failureOf(
      run([{ kind: 'storm', at: 300, hosts: 1, rounds: 1 }], 1000, 2, (target) => ({
        ...idle(target),
        where: { ...target.where, nqn: 'nqn.2026-11.io.nvmeof:nobody' },
      })),
    );
    expect(failure)
      .to.have.property('message')
      .that.matches(/nobody|Connect/i);
  });
});
