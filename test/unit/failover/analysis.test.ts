/** What is made of a run's log: figures, verdicts, curves and the report, with stalls and errors that are planted. */
import { expect } from 'chai';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  analyse,
  longestStall,
  recoveredAt,
  returnedAt,
} from '../../../tools/failover/analysis.ts';
import type { FaultResult, PathRecord, RunRecord } from '../../../tools/failover/analysis.ts';
import type { PathState } from '../../../tools/failover/host.ts';
import { CompletionLog } from '../../../tools/failover/completion-log.ts';
import { repeatsOf, worstRun } from '../../../tools/failover/repeats.ts';
import {
  html,
  jsonReport,
  markdown,
  passed,
  terminalReport,
  terminalSpread,
  writeReport,
} from '../../../tools/failover/report.ts';
import type { RunOutcome } from '../../../tools/failover/run.ts';
import { parseScenario } from '../../../tools/failover/scenario.ts';
import type { Fault } from '../../../tools/failover/scenario.ts';
import { pathSpans, series } from '../../../tools/failover/series.ts';
import { pass, prepared, settled } from './support.ts';

const SCENARIO = parseScenario(
  {
    ...{ name: 'made-up', about: 'two <faults>', duration: 3000 },
    faults: [
      { kind: 'stop', at: 1000, for: 200, bounds: { stallMs: 300, recoverMs: 500 } },
      { kind: 'loss', at: 2000, for: 200, drop: 0.1, bounds: { stallMs: 300 } },
    ],
  },
  'test',
);

interface Planted {
  /** No completion between these times. */
  readonly silent?: readonly [number, number];
  readonly failAt?: readonly number[];
  readonly only?: 'read' | 'write';
}

/** A read and a write each 10 ms, for 3 s. */
function record(
  { silent = [0, 0], failAt = [], only }: Planted = {},
  more: Partial<RunRecord> = {},
): RunRecord {
  const log = new CompletionLog();
  for (let at = 5; at < 3000; at += 5) {
    const operation = at % 10 === 0 ? 'read' : 'write';
    if (at > silent[0] && at < silent[1] && (only === undefined || only === operation)) continue;
    const latency = at === silent[1] ? silent[1] - silent[0] : 2;
    log.add(at, latency, operation, failAt.includes(at));
  }
  const [first, second] = SCENARIO.faults;
  if (!first || !second) throw new Error('two faults');
  return {
    ...{ scenario: SCENARIO, log, durationMs: 3000, unfinished: 0, comparedAll: true },
    faults: [
      { fault: first, path: 'a', beginMs: 1000, endMs: 1200 },
      { fault: second, path: 'a', beginMs: 2000, endMs: 2200 },
    ],
    ...{ pathsAtStart: [{ path: 'a', state: 'live' }], paths: [], uses: [] },
    ...{ blocksVerified: 500, mismatches: 0, bytesAtStart: 1n << 20n, bytesAtEnd: 1n << 20n },
    reconnectDelayMs: 100,
    ...more,
  };
}

const outcome = (run: RunRecord): RunOutcome => ({
  ...{ record: run, result: analyse(run), errors: [], inDoubt: 0 },
  load: { rate: 200, readPercent: 50, requestBytes: 4096, areaBytes: 1 << 20, depth: 8, seed: 1 },
  mismatches:
    run.mismatches === 0 ? [] : [{ atMs: 5, lba: 9, expected: 'generation 2', found: 'zeroes' }],
});

describe('longest stall', () => {
  const window = { from: 100, to: 200 };
  it('counts from the last completion before to the first after, and to the end without one', () => {
    expect(longestStall([90, 150, 160, 230], window)).to.equal(60);
    expect(longestStall([10, 150, 190], window)).to.equal(140);
    expect(longestStall([10, 20, 95], window)).to.equal(105);
    expect(longestStall([], window)).to.equal(200);
    // Those outside are none of it.
    expect(longestStall([10, 98, 110, 195, 900], window)).to.equal(85);
  });
});

describe('recovery', () => {
  const window = { from: 1000, to: 4000 };
  const every10 = (from: number, to: number): number[] =>
    Array.from({ length: (to - from) / 10 }, (_, index) => from + index * 10);

  it('is when I/O was good again for half a second, and the fault over', () => {
    expect(recoveredAt(every10(0, 4000), [], window, 1200)).to.equal(1000);
    expect(recoveredAt(every10(0, 4000), [1105, 1255], window, 1200)).to.equal(1255);
    // What comes later is another matter,
    expect(recoveredAt(every10(0, 4000), [1105, 3005], window, 1200)).to.equal(1105);
    // but not while the fault lasts.
    expect(recoveredAt(every10(0, 4000), [1105, 2905], window, 3000)).to.equal(2905);
  });

  it('does not take silence for health', () => {
    const good = [...every10(0, 1000), 1005, ...every10(2800, 4000)];
    expect(recoveredAt(good, [2795], window, 1001)).to.equal(2795);
    expect(recoveredAt(every10(0, 1000), [], window, 1001)).to.equal(4000);
    expect(recoveredAt(every10(0, 2000), [3900], window, 1001)).to.equal(1000);
    expect(recoveredAt(every10(0, 1300), [3900], window, 1001)).to.equal(4000);
    expect(recoveredAt(every10(0, 4000), [3900], window, 3800)).to.equal(3900);
  });
});

describe('return of a path', () => {
  const window = { from: 1000, to: 5000 };
  const [fault] = SCENARIO.faults;
  if (!fault) throw new Error('a fault');
  const happened = { fault, path: 'a', beginMs: 1000, endMs: 2000 };
  const is = (path: string, state: PathState, atMs: number): PathRecord => ({
    ...{ path, state, atMs, reason: '' },
  });
  const gone = is('a', 'lost', 1100);

  it('counts to the first request on it, where targets tell, else until it is live', () => {
    const paths = [gone, is('b', 'lost', 1200), is('b', 'live', 1300), is('a', 'live', 2900)];
    expect(returnedAt({ paths, uses: [] }, happened, window)).to.equal(2900);
    const uses = [
      { path: 'a', atMs: 500 },
      { path: 'b', atMs: 2950 },
      { path: 'a', atMs: 2960 },
    ];
    expect(returnedAt({ paths, uses }, happened, window)).to.equal(2960);
  });

  it('a path that went again has not come back', () => {
    const paths = [gone, is('a', 'live', 1500), is('a', 'connecting', 1600)];
    expect(returnedAt({ paths, uses: [] }, happened, window)).to.equal(Infinity);
    const again = [...paths, is('a', 'live', 2700)];
    expect(returnedAt({ paths: again, uses: [] }, happened, window)).to.equal(2700);
  });

  it('is nothing where none was lost or the fault stays, and never less than 0', () => {
    expect(returnedAt({ paths: [], uses: [] }, happened, window)).to.equal(undefined);
    const early = [gone, is('a', 'live', 1990)];
    expect(returnedAt({ paths: early, uses: [] }, happened, window)).to.equal(2000);
    const kill = parseScenario(
      { name: 'k', duration: 5000, faults: [{ kind: 'kill', at: 1000 }] },
      'x',
    );
    const [dead] = kill.faults;
    if (!dead) throw new Error('a fault');
    expect(returnedAt({ paths: early, uses: [] }, { ...happened, fault: dead }, window)).to.equal(
      undefined,
    );
  });

  const strict = { ...fault, bounds: { ...fault.bounds, returnMs: 400 } };
  const allowed = '500 ms are allowed (100 ms of them the reconnect delay)';
  const CASES: readonly (readonly [readonly PathRecord[], string | undefined])[] = [
    [[gone, is('a', 'live', 1700)], undefined],
    [[gone, is('a', 'live', 1701)], `the path was used again after 501 ms, ${allowed}`],
    [[gone], `the path was not used again, ${allowed}`],
    [[], `the path was not lost, ${allowed}`],
  ];
  for (const [paths, complaint] of CASES) {
    it(`its bound: ${complaint ?? 'kept'}`, () => {
      const faults = [{ fault: strict, path: 'a', beginMs: 1000, endMs: 1200 }];
      const [result] = analyse(record({}, { paths, faults })).faults;
      expect(result?.broken[0]).to.equal(complaint);
    });
  }
});

describe('analysis', () => {
  it('a run without trouble passes', () => {
    const result = analyse(record());
    expect(result).to.deep.include({ passed: true, requests: 599, errors: 0, broken: [] });
    for (const fault of result.faults) {
      expect(fault).to.deep.include({ readStallMs: 10, writeStallMs: 10, recoverMs: 0, errors: 0 });
      expect(fault.detectMs).to.equal(undefined);
    }
  });

  it('a planted stall is measured at the fault it belongs to, and fails the run', () => {
    const { faults, passed: kept } = analyse(record({ silent: [1000, 1400] }));
    expect(kept).to.equal(false);
    expect(faults[0]).to.deep.include({ readStallMs: 400, recoverMs: 400 });
    expect(faults[0]?.broken[0]).to.equal('no read ended for 400 ms, 300 ms are allowed');
    expect(faults[1]).to.deep.include({ readStallMs: 10, broken: [] });
  });

  it('a stall of writes alone is no stall of reads', () => {
    const { faults } = analyse(record({ silent: [2000, 2500], only: 'write' }));
    expect(faults[1]).to.deep.include({ readStallMs: 10, writeStallMs: 510 });
    expect(faults[1]?.broken).to.deep.equal(['no write ended for 510 ms, 300 ms are allowed']);
  });

  it('a stall that lasts to the end is one', () => {
    expect(analyse(record({ silent: [2100, 4000] })).faults[1]).to.deep.include({
      readStallMs: 900,
    });
  });

  it('errors belong to the fault before them and must be allowed', () => {
    const { faults, errors } = analyse(record({ failAt: [1100, 1795, 2100] }));
    expect(errors).to.equal(3);
    expect(faults.map((fault) => fault.errors)).to.deep.equal([2, 1]);
    expect(faults[0]?.broken).to.deep.equal(['2 requests failed, 0 are allowed']);
  });

  it('tells when the host noticed', () => {
    const paths = [
      { path: 'a', state: 'lost', reason: 'silence', atMs: 1150 },
      { path: 'a', state: 'live', reason: 'back', atMs: 1300 },
    ] as const;
    const [first, second] = analyse(record({}, { paths })).faults;
    expect([first?.detectMs, second?.detectMs]).to.deep.equal([150, undefined]);
    const [stop, loss] = SCENARIO.faults;
    if (!stop || !loss) throw new Error('two faults');
    const strict = { ...loss, bounds: { ...loss.bounds, detectMs: 100 } };
    const faults = [
      {
        fault: { ...stop, bounds: { ...stop.bounds, detectMs: 100 } },
        path: 'a',
        beginMs: 1000,
        endMs: 1200,
      },
      { fault: strict, path: 'a', beginMs: 2000, endMs: 2200 },
    ];
    expect(
      analyse(record({}, { paths, faults })).faults.map(({ broken }) => broken[0]),
    ).to.deep.equal([
      'the host noticed after 150 ms, 100 ms are allowed',
      'the host noticed not at all, 100 ms are allowed',
    ]);
  });

  const BROKEN: readonly (readonly [Partial<RunRecord>, RegExp])[] = [
    [{ mismatches: 1 }, /1 blocks held something else/],
    [{ unfinished: 2 }, /2 requests never ended/],
    [{ blocksVerified: 0 }, /no block was compared/],
    [{ comparedAll: false }, /not every block could be read/],
    [{ faults: [] }, /2 faults never happened/],
    [{ log: new CompletionLog() }, /too few to compare/],
  ];
  for (const [more, message] of BROKEN) {
    it(`is no pass: ${message.source}`, () => {
      const result = analyse(record({}, more));
      expect(result.passed).to.equal(false);
      expect(result.broken.join()).to.match(message);
    });
  }

  it('a bound of reads alone leaves writes theirs', () => {
    const [stop] = SCENARIO.faults;
    if (!stop) throw new Error('a fault');
    const fault = { ...stop, bounds: { errors: 0, stallMs: 500, readStallMs: 50 } };
    const faults = [{ fault, path: 'a', beginMs: 1000, endMs: 1200 }];
    const scenario = { ...SCENARIO, faults: [fault] };
    expect(
      analyse(record({ silent: [1000, 1400] }, { faults, scenario })).faults[0]?.broken,
    ).to.deep.equal(['no read ended for 400 ms, 50 ms are allowed']);
  });

  it('a stall while the target starts again is no stall of the loss, and has a bound of its own', () => {
    const [stop] = SCENARIO.faults;
    if (!stop) throw new Error('a fault');
    const bounds = { errors: 0, stallMs: 100, returnStallMs: 300 };
    const fault = { ...stop, kind: 'restart', after: 500, bounds } as const;
    const faults = [{ fault, path: 'a', beginMs: 1000, againMs: 1500, endMs: 1900 }];
    const scenario = { ...SCENARIO, faults: [fault] };
    const during = (silent: readonly [number, number]): FaultResult | undefined =>
      analyse(record({ silent }, { faults, scenario })).faults[0];
    expect(during([1495, 1700])).to.deep.include({ writeStallMs: 10, returnStallMs: 210 });
    expect(during([1495, 1700])?.broken).to.deep.equal([]);
    expect(during([1600, 2000])?.broken).to.deep.equal([
      'while the target started again, nothing ended for 410 ms, 300 ms are allowed',
    ]);
    expect(during([1000, 1200])).to.deep.include({ readStallMs: 200, returnStallMs: 10 });
  });

  it('a fault that waited for its target keeps its place among the results', () => {
    const [first, second] = SCENARIO.faults;
    if (!first || !second) throw new Error('two faults');
    const faults = [
      { fault: second, path: 'b', beginMs: 1000, endMs: 1200 },
      { fault: first, path: 'a', beginMs: 2000, endMs: 2200 },
    ];
    const found = analyse(record({}, { faults })).faults;
    expect(found.map(({ beginMs }) => beginMs)).to.deep.equal([2000, 1000]);
  });

  const common = { at: 1000, target: 0, bounds: { errors: 0 } };
  const ana = { ...common, kind: 'ana', state: 'inaccessible', for: 200 } as const;
  const resize = { ...common, kind: 'resize', percent: 150 } as const;
  const drained = { ...common, kind: 'terminate', after: 200 } as const;
  const is = (path: string, state: PathState): Partial<RunRecord> => ({
    paths: [{ path, state, reason: '', atMs: 1005 }],
  });
  const SHOWN: readonly (readonly [Fault, Partial<RunRecord>, string | undefined])[] = [
    [ana, {}, 'the host did not see the path inaccessible'],
    [ana, is('b', 'standby'), 'the host did not see the path inaccessible'],
    [ana, is('a', 'standby'), undefined],
    [drained, is('a', 'standby'), 'the host lost no controller'],
    [drained, is('a', 'connecting'), undefined],
    [resize, {}, 'the host sees 1048576 bytes'],
    [resize, { bytesAtEnd: 3n << 19n }, undefined],
  ];
  for (const [fault, more, missed] of SHOWN) {
    it(`${fault.kind}: ${missed ?? 'seen by the host'}`, () => {
      const faults = [{ fault, path: 'a', beginMs: 1000, endMs: 1200 }];
      const scenario = { ...SCENARIO, faults: [fault] };
      const result = analyse(record({}, { ...more, faults, scenario }));
      expect(result.passed).to.equal(missed === undefined);
      expect(result.faults[0]?.broken).to.deep.equal(
        missed === undefined ? [] : [`the fault did not happen: ${missed}`],
      );
    });
  }

  it('errors before the first fault are no pass', () => {
    expect(analyse(record({ failAt: [500] })).broken).to.deep.equal([
      '1 requests failed before the first fault',
    ]);
  });

  it('a stall planted into a real load is what is measured', async () => {
    const { clock, io, load } = await prepared();
    load.start();
    await pass(clock, 500);
    const beginMs = load.elapsedMs;
    io.stalledUntil = clock.now() + 350;
    await pass(clock, 1000);
    await settled(clock, load.stop());
    const [stop] = SCENARIO.faults;
    if (!stop) throw new Error('a fault');
    const run = record(
      {},
      {
        ...{ log: load.log, durationMs: load.elapsedMs },
        scenario: { ...SCENARIO, faults: [stop] },
        faults: [{ fault: stop, path: 'a', beginMs, endMs: beginMs + 350 }],
      },
    );
    const { faults, passed: kept } = analyse(run);
    expect(faults[0]?.readStallMs).to.be.within(345, 360);
    expect(faults[0]?.recoverMs).to.be.within(345, 420);
    expect(kept).to.equal(false);
  });
});

describe('curves and report', () => {
  it('rates and latencies by steps, nothing where nothing ended', () => {
    const { read, write, failed, worst, stepMs } = series(
      record({ silent: [1000, 1400], failAt: [505] }),
    );
    expect(stepMs).to.equal(20);
    expect(read[1]).to.deep.equal([0.02, 100]);
    expect(write.at(-1)).to.deep.equal([2.98, 100]);
    expect(failed[25]).to.deep.equal([0.5, 50]);
    expect(worst[60]).to.deep.equal([1.2, null]);
    expect(worst[70]).to.deep.equal([1.4, 400]);
  });

  it('paths are spans from the beginning to the end', () => {
    const paths = [
      { path: 'a', state: 'lost', reason: '', atMs: 1000 },
      { path: 'b', state: 'live', reason: '', atMs: 1500 },
    ] as const;
    expect(pathSpans(record({}, { paths }))).to.deep.equal([
      { path: 'a', state: 'live', fromMs: 0, toMs: 1000 },
      { path: 'a', state: 'lost', fromMs: 1000, toMs: 3000 },
      { path: 'b', state: 'connecting', fromMs: 0, toMs: 1500 },
      { path: 'b', state: 'live', fromMs: 1500, toMs: 3000 },
    ]);
  });

  it('says passed only when everything did, and why not', () => {
    const good = outcome(record());
    const bad = outcome(record({ silent: [1000, 1400] }, { mismatches: 1 }));
    expect(passed([good])).to.equal(true);
    expect(passed([good, bad])).to.equal(false);
    expect(passed([])).to.equal(false);
    expect(terminalReport(good)).to.match(/^made-up: passed/);
    const text = terminalReport(bad);
    expect(text).to.match(/^made-up: FAILED/);
    expect(text).to.include('1 stop for 200 ms, target 0');
    expect(text).to.include('no read ended for 400 ms, 300 ms are allowed');
    expect(text).to.include('LBA 9 holds zeroes, expected generation 2');
    expect(markdown([good, bad])).to.match(/^# Failover test: FAILED/);
    expect(jsonReport([good, bad])).to.have.property('passed', false);
  });

  it('of several runs the worst and the median of each figure, and curves of the worst alone', () => {
    const outcomes = [1150, 1250, 1100].map((until) => outcome(record({ silent: [1000, until] })));
    const [repeats] = repeatsOf(outcomes);
    if (!repeats) throw new Error('a scenario');
    const [stop] = repeats.faults;
    expect(stop?.figures.readStallMs).to.deep.equal({ worst: 250, median: 150, runs: 3 });
    expect(stop?.figures.errors).to.deep.equal({ worst: 0, median: 0, runs: 3 });
    expect(stop?.figures).not.to.have.property('returnMs');
    expect(worstRun(repeats)).to.equal(outcomes[1]);
    for (const text of [terminalSpread(outcomes), markdown(outcomes)]) {
      expect(text).to.match(/worst \(median\) of 3 runs, 0 of which failed/);
      expect(text).to.include('250 ms (150 ms)');
    }
    expect(terminalSpread(outcomes.slice(0, 1))).to.equal('');
    expect(jsonReport(outcomes)).to.have.nested.property(
      'scenarios[0].faults[0].figures.readStallMs.worst',
      250,
    );
    const drawn: RunOutcome[] = [];
    const page = html(outcomes, (each) => {
      drawn.push(each);
      return [{ title: 'curve', svg: '<svg></svg>' }];
    });
    expect(drawn).to.deep.equal([outcomes[1]]);
    expect(page.match(/<svg/g)).to.have.length(1);
    for (const run of [1, 2, 3]) expect(page).to.include(`made-up, run ${run}: `);
    const failing = [...outcomes, outcome(record({ silent: [1000, 1201], failAt: [1500] }))];
    expect(terminalSpread(failing)).to.match(/^made-up: FAILED, .* of 4 runs, 1 of which failed/);
    html(failing, (each) => {
      drawn.push(each);
      return [];
    });
    expect(drawn.slice(1)).to.deep.equal([outcomes[1], failing[3]]);
  });

  it('writes JSON, Markdown and a page that needs nothing else', async function () {
    // echarts takes its time to load.
    this.timeout(30_000);
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-failover-'));
    try {
      const paths = [{ path: '127.0.0.1:4420', state: 'lost', reason: '', atMs: 1100 }] as const;
      const pathsAtStart = [{ path: '127.0.0.1:4420', state: 'live' }] as const;
      const files = await writeReport(folder, [outcome(record({}, { paths, pathsAtStart }))]);
      expect(files).to.have.length(3);
      expect(files.every((file) => existsSync(file))).to.equal(true);
      const page = readFileSync(join(folder, 'failover.html'), 'utf8');
      expect(page.match(/<svg/g)).to.have.length(3);
      expect(page).to.include('two &lt;faults&gt;');
      for (const word of ['1 stop', '2 loss', '127.0.0.1:4420', 'lost'])
        expect(page).to.include(word);
      expect(page).not.to.match(/<script|src=|https?:\/\/(?!www\.w3\.org)/);
      expect(
        () => JSON.parse(readFileSync(join(folder, 'failover.json'), 'utf8')) as object,
      ).not.to.throw();
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
