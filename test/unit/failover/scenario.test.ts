/** The language of scenarios, those that are built in, and which of them a host can pass. */
import { expect } from 'chai';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { unfit } from '../../../tools/failover/inject.ts';
import {
  describeFault,
  lengthOf,
  loadScenario,
  parseScenario,
} from '../../../tools/failover/scenario.ts';
import { SCENARIOS } from '../../../tools/failover/scenarios.ts';
import { usableScenarios } from '../../../tools/cli/commands/failover-test.ts';
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

  it('a host with one path is not asked for what it cannot survive', () => {
    const single = { survivesLostPaths: false, followsAna: false };
    const several = { survivesLostPaths: true, followsAna: true };
    const fit = (name: string): string | undefined => {
      const found = SCENARIOS.find((each) => each.name === name);
      return found && unfit(parseScenario(found, name), single);
    };
    for (const name of ['loss', 'delay', 'pause', 'gap', 'resize', 'storm']) {
      expect(fit(name), name).to.equal(undefined);
    }
    for (const name of ['kill', 'blackhole', 'freeze']) {
      expect(fit(name), name).to.match(/takes the path away/);
    }
    expect(fit('ana')).to.match(/ANA/);
    for (const each of SCENARIOS) {
      expect(unfit(parseScenario(each, each.name), several), each.name).to.equal(undefined);
    }
    expect(usableScenarios()).to.have.length(SCENARIOS.length);
  });
});
