/**
 * No I/O becomes more expensive unnoticed: instructions and system calls per command, within 5 % of baseline.json. What got
 * cheaper by more than that fails too, so that the record keeps up: `npm run test:cost -- --record` writes it anew.
 *   NVMEOF_COST_PROGRAM   io_cost, as `npm run test:cost` builds it
 *   NVMEOF_COST_RECORD    set: write the record instead of comparing with it
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { expect } from 'chai';
import { buildName, differences, measure, WORKS, type CostsByWork, type Work } from './cost.ts';

const FILE = new URL('baseline.json', import.meta.url);
const TOLERANCE = 0.05;
const program = process.env['NVMEOF_COST_PROGRAM'] ?? '';
const recording = process.env['NVMEOF_COST_RECORD'] !== undefined;

type Records = Record<string, CostsByWork>;

describe('cost of an I/O on the simulated link', function () {
  this.timeout(120_000);
  const records = JSON.parse(readFileSync(FILE, 'utf8')) as Records;
  let build = '';
  const fresh: Record<string, CostsByWork[string]> = {};

  before(async () => {
    build = await buildName(program);
  });

  const recorded = (work: Work): CostsByWork[string] | undefined => records[build]?.[work.name];

  for (const work of WORKS) {
    it(work.name, async function () {
      const now = await measure(program, work);
      fresh[work.name] = now;
      const { host, target } = now;
      const text = (side: typeof host): string =>
        `${side.instructions} instructions, ${side.systemCalls.toFixed(3)} system calls`;
      process.stdout.write(`      host ${text(host)}; target ${text(target)}\n`);
      if (recording) return;
      const before = recorded(work);
      // Another compiler: its instructions are no better and no worse.
      if (!before) this.skip();
      expect(differences(before, now, TOLERANCE)).to.deep.equal([]);
    });
  }

  for (const [plant, what] of [
    ['trains', /system calls/],
    ['checks', /instructions/],
  ] as const) {
    it(`notices a planted regression: ${plant}`, async function () {
      const work = WORKS.find(({ name }) => name === '4 KiB read, depth 32') as Work;
      const before = recording ? fresh[work.name] : recorded(work);
      if (!before) this.skip();
      const found = differences(before, await measure(program, work, plant), TOLERANCE);
      expect(found.join('\n')).to.match(what);
    });
  }

  after(() => {
    if (!recording) return;
    records[build] = fresh;
    const sorted = Object.fromEntries(Object.entries(records).sort(([a], [b]) => (a < b ? -1 : 1)));
    writeFileSync(FILE, `${JSON.stringify(sorted, null, 2)}\n`);
  });
});
