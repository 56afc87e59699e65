/** The language of scenarios, those that are built in, and which of them can be run on targets that exist already. */
import { expect } from 'chai';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { remoteTargets } from '../../../tools/failover/existing-bed.ts';
import { scenarioRefusal } from '../../../tools/failover/faulty-target.ts';
import { HostFaults } from '../../../tools/failover/host-faults.ts';
import {
  describeFault,
  lengthOf,
  loadScenario,
  parseScenario,
} from '../../../tools/failover/scenario.ts';
import { SCENARIOS } from '../../../tools/failover/scenarios.ts';
import { builtIn } from '../../../tools/cli/commands/failover-test.ts';
import { failureOf } from '../../support/in-process.ts';

const LOSS = { kind: 'loss', at: 100, for: 100, drop: 0.1 } as const;
const base = { name: 'mine', duration: '1s', faults: [LOSS] } as const;

describe('scenarios', () => {
  it('fill in what is left out', () => {
    expect(parseScenario(base, 'x')).to.deep.equal({
      ...{ name: 'mine', about: '', duration: 1000 },
      faults: [{ ...LOSS, target: 0, direction: 'both', bounds: { errors: 0 } }],
    });
    const times = { at: '0.5s', for: '250ms', bounds: { stallMs: '1m' } };
    expect(
      parseScenario({ ...base, faults: [{ ...LOSS, ...times }] }, 'x').faults[0],
    ).to.deep.include({
      ...{ at: 500, for: 250, bounds: { stallMs: 60_000, errors: 0 } },
    });
  });

  const WRONG: readonly (readonly [unknown, RegExp])[] = [
    [{ ...base, name: 'My Name' }, /x: name: must be small letters/],
    [{ ...base, faults: [] }, /faults: needs at least one/],
    [{ ...base, speed: 1 }, /unknown key "speed"/],
    [{ ...base, duration: 'long' }, /duration: must be a time/],
    [{ ...base, duration: '2h' }, /duration: must be a time/],
    [{ ...base, duration: -1 }, /duration: must be a time/],
    [{ ...base, faults: [{ ...LOSS, drop: 1.5 }] }, /faults\[0\]\.drop/],
    [{ ...base, faults: [{ ...LOSS, kind: 'fire' }] }, /faults\[0\]\.kind/],
    [{ ...base, faults: [{ ...LOSS, delayMs: 5 }] }, /faults\[0\]: unknown key "delayMs"/],
    [{ ...base, faults: [{ ...LOSS, at: 1000 }] }, /faults\[0\]\.at: must be within the duration/],
    [{ ...base, faults: [{ ...LOSS, for: 950 }] }, /faults\[0\]\.for: ends at 1050 ms/],
    [{ ...base, faults: [{ ...LOSS, bounds: { stall: 5 } }] }, /bounds: unknown key "stall"/],
    [{ ...base, faults: [{ ...LOSS, at: 500 }, LOSS] }, /faults\[1\]\.at: must not be before/],
    [{ ...base, faults: [{ kind: 'resize', at: 1, percent: 50 }] }, /faults\[0\]\.percent/],
    [
      { ...base, faults: [{ kind: 'kill', at: 1, bounds: { returnMs: 5 } }] },
      /faults\[0\]\.bounds: returnMs: a path that meets kill does not come back/,
    ],
  ];
  for (const [value, message] of WRONG) {
    it(`names what is wrong: ${message.source}`, () => {
      expect(() => parseScenario(value, 'x'))
        .to.throw(Error, message)
        .with.property('code', 'CONFIG_INVALID');
    });
  }

  it('the built-in ones are right, have names of their own and a bound for each stall', () => {
    expect(new Set(SCENARIOS.map(({ name }) => name)).size).to.equal(SCENARIOS.length);
    for (const each of SCENARIOS) {
      const scenario = parseScenario(each, each.name);
      expect(scenario.about, each.name).not.to.equal('');
      for (const fault of scenario.faults) {
        expect(fault.bounds.stallMs, `${each.name} ${fault.kind}`).to.be.a('number');
        // Time to be fast again before the end.
        expect(fault.at + lengthOf(fault), each.name).to.be.at.most(scenario.duration - 500);
        expect(describeFault(fault)).to.match(/, target 0$/);
      }
    }
  });

  it('are found by name, in place and in files', async () => {
    expect((await loadScenario('gap')).faults.map((fault) => describeFault(fault))).to.deep.equal([
      'blackhole in for 400 ms, target 0',
      'blackhole out for 400 ms, target 0',
      'blackhole both for 400 ms, target 0',
    ]);
    expect((await loadScenario(` ${JSON.stringify(base)}`)).name).to.equal('mine');
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-scenario-'));
    try {
      const file = join(folder, 'mine.json');
      writeFileSync(file, JSON.stringify(base));
      expect((await loadScenario(file)).name).to.equal('mine');
      writeFileSync(file, '{"name":');
      expect(await failureOf(loadScenario(file))).to.have.property('code', 'CONFIG_INVALID');
      expect(await failureOf(loadScenario(join(folder, 'none'))))
        .to.have.property('message')
        .that.matches(/neither a scenario \(loss, .*\) nor a file/);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  const NQN = 'nqn.2026-11.io.nvmeof:there';
  const HERE = { address: '192.0.2.7', port: 4420 };
  const THERE = { address: '192.0.2.8', port: 4420 };
  const refused = (
    name: string,
    paths: readonly { address: string; port: number }[],
    controls: readonly string[],
  ): string => {
    const targets = remoteTargets({ paths, nqn: NQN, nsid: 1, controls }, new HostFaults(1));
    const scenario = builtIn().find((each) => each.name === name);
    return scenario ? (scenarioRefusal(scenario, targets) ?? 'can be run') : 'is not there';
  };

  it('at targets that exist already, what the host can do by itself is done', () => {
    for (const name of ['loss', 'delay', 'duplicates', 'reordering', 'gap', 'blackhole', 'storm']) {
      expect(refused(name, [HERE, THERE], []), name).to.equal('can be run');
    }
  });

  it('there, what only the target can do needs its control socket', () => {
    for (const name of ['terminate', 'ana', 'resize']) {
      expect(refused(name, [HERE, THERE], []), name).to.match(/at 192\.0\.2\.7:4420: .*--control/);
      expect(refused(name, [HERE, THERE], ['a', 'b']), name).to.equal('can be run');
    }
    // Every target that shares the namespace must grow.
    expect(refused('resize', [HERE, THERE], ['a'])).to.match(/at 192\.0\.2\.8:4420/);
    expect(refused('ana', [HERE, THERE], ['a'])).to.equal('can be run');
  });

  it('there, no process is killed, stopped or started', () => {
    for (const name of ['kill', 'freeze', 'pause']) {
      expect(refused(name, [HERE, THERE], ['a', 'b']), name).to.match(/not a process of this test/);
    }
  });

  it('packets of two ports of one address are not told apart', () => {
    const other = { ...HERE, port: 4421 };
    expect(refused('loss', [HERE, other], [])).to.match(/port 4421 of the same address/);
    expect(refused('ana', [HERE, other], ['a', 'a'])).to.equal('can be run');
  });

  it('a target that is not there is named', () => {
    const far = parseScenario({ ...base, faults: [{ ...LOSS, target: 3 }] }, 'x');
    const targets = remoteTargets(
      { paths: [HERE, THERE], nqn: NQN, nsid: 1, controls: [] },
      new HostFaults(1),
    );
    expect(scenarioRefusal(far, targets)).to.equal('there is no target 3, the last one is 1');
  });
});
