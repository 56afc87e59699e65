/** The bench's own arithmetic and its report, on figures that are made up; and that its matrix is what it says. */
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { fioFigures } from '../../../tools/bench/fio.ts';
import {
  budget,
  median,
  medians,
  type Figures,
  type Subject,
} from '../../../tools/bench/figures.ts';
import { parseLimits } from '../../../tools/bench/limits.ts';
import { Targets } from '../../../tools/bench/ours.ts';
import type { MachineDescription } from '../../../tools/bench/machine.ts';
import { measure } from '../../../tools/bench/measure.ts';
import { html, markdown, writeReport } from '../../../tools/bench/report.ts';
import { Parts, type Goal, type Row } from '../../../tools/bench/parts.ts';
import { FloorProgram } from '../../../tools/bench/programs.ts';
import { rows } from '../../../tools/bench/rows.ts';

const MACHINE: MachineDescription = {
  ...{ processor: 'Test <processor>', processors: 2, memoryGib: 4, kernel: 'Linux 0' },
  ...{ hypervisor: true, node: 'v20', receiveBufferMax: '1', hugePages: 'never' },
  ...{ commit: 'abc', date: '2026-11-30T00:00:00.000Z' },
};

function subject(name: string, all: readonly Figures[], order: string[] = []): Subject {
  let next = 0;
  return {
    name,
    measure: () => {
      order.push(name);
      const figures = all[next++ % all.length];
      return figures ? Promise.resolve(figures) : Promise.reject(new Error('no figures'));
    },
  };
}

const iops = (value: number): Figures => ({
  iops: value,
  bandwidth: value * 4096,
  p50: 1e6 / value,
});

function row(id: string, goal: Goal, ours: number[], theirs: number[], order?: string[]): Row {
  return {
    ...{ id, title: `work ${id}`, goal },
    subject: subject('ours', ours.map(iops), order),
    reference: subject('theirs', theirs.map(iops), order),
  };
}

describe('the bench', () => {
  it('takes the median of each figure by itself', () => {
    expect(median([5, 1, 9])).to.equal(5);
    const all = [
      { iops: 1, bandwidth: 9, p50: 3 },
      { iops: 3, bandwidth: 7, p50: 1 },
      { iops: 2, bandwidth: 8, p50: 2, hostCpu: 4 },
    ];
    expect(medians(all)).to.deep.equal({ iops: 2, bandwidth: 8, p50: 2, hostCpu: 4 });
  });

  it('reads what fio and nvmeof bench print, of whichever side did something', () => {
    const side = (ios: number, clat: number): unknown => ({
      ...{ iops: ios / 2, bw_bytes: ios * 2048, total_ios: ios },
      clat_ns: ios === 0 ? {} : { percentile: { '50.000000': clat, '99.000000': 2 * clat } },
    });
    const text = JSON.stringify({ jobs: [{ read: side(0, 0), write: side(1000, 5000) }] });
    expect(fioFigures(text)).to.deep.equal({
      ...{ iops: 500, bandwidth: 2_048_000, p50: 5, p99: 10, commands: 1000 },
    });
    expect(() => fioFigures('{"jobs":[]}')).to.throw();
  });

  it('measures ours and its reference in turn, and compares their medians with the goal', async () => {
    const order: string[] = [];
    const rows = [
      row('a', { metric: 'iops', atLeast: 0.9 }, [90, 80, 95], [100, 100, 50], order),
      row('b', { metric: 'p50', atMost: 1.2 }, [100], [130], order),
    ];
    const results = await measure({ rows, sweeps: [] }, { rounds: 3, seconds: 1, progress: false });
    expect(order.slice(0, 4)).to.deep.equal(['ours', 'theirs', 'ours', 'theirs']);
    expect(order).to.have.length(12);
    const [first, second] = results.rows;
    expect(first).to.include({ ratio: 0.9, reached: true });
    expect(second?.ratio).to.be.closeTo(1.3, 1e-9);
    expect(second?.reached).to.equal(false);
  });

  it('measures what takes long once, and beside a budget where there is nothing else', async () => {
    const order: string[] = [];
    const idle: Row = {
      ...{ id: 'idle', title: 'idle', goal: { metric: 'cpuShare', atMost: 1 }, once: true },
      subject: subject('ours', [{ iops: 0, bandwidth: 0, cpuShare: 0.002 }], order),
      reference: budget('allowed', { cpuShare: 0.01 }),
    };
    const memory: Row = {
      ...{ id: 'memory', title: 'memory', goal: { metric: 'memoryPerQueue', atMost: 1 } },
      subject: subject('ours', [{ iops: 0, bandwidth: 0, memoryPerQueue: 400 << 10 }], order),
      reference: budget('allowed', { memoryPerQueue: 300 << 10 }),
    };
    const matrix = { rows: [idle, memory], sweeps: [] };
    const results = await measure(matrix, { rounds: 3, seconds: 1, progress: false });
    expect(order).to.have.length(1 + 3);
    expect(results.rows.map(({ reached }) => reached)).to.deep.equal([true, false]);
    const text = markdown({ machine: MACHINE, results });
    expect(text).to.include(
      '| idle | 0.20 % of a core | 1.00 % of a core (allowed) | 0.20 | ≤ 1 | reached |',
    );
    expect(text).to.include(
      '| memory | 400.0 KiB | 300.0 KiB (allowed) | 1.33 | ≤ 1 | not reached |',
    );
  });

  it('has rows of their own for many queues and two reactors, each with a goal', () => {
    const parts = new Parts(
      new Targets(),
      new FloorProgram('no-folder'),
      [0, 1],
      'no-folder/namespace.img',
    );
    const all = rows(parts);
    const goals = new Map(all.map(({ id, goal }) => [id, goal]));
    expect(goals.size).to.equal(all.length);
    expect(goals.get('idle-cpu')).to.deep.equal({ metric: 'cpuShare', atMost: 1 });
    expect(goals.get('idle-first')).to.deep.equal({ metric: 'p50', atMost: 1.5 });
    expect(goals.get('queues-1000')).to.deep.equal({ metric: 'iops', atLeast: 0.8 });
    expect(goals.get('queues-1000-memory')).to.deep.equal({ metric: 'memoryPerQueue', atMost: 1 });
    expect(goals.get('reactors-2')).to.deep.equal({ metric: 'iopsPerCpu', atLeast: 0.9 });
    expect(goals.get('nbd-4k-32')).to.deep.equal({ metric: 'iops', atLeast: 1 });
    expect(goals.get('fio-4k-32')).to.deep.equal({ metric: 'iops', atLeast: 0.85 });
    const prepared = all.filter(({ prepare }) => prepare).map(({ id }) => id);
    expect(prepared).to.deep.equal(['fio-4k-32']);
  });

  it('shows packets on the wrong core beside every row', async () => {
    const wrong = { ...row('w', { metric: 'iopsPerCpu', atLeast: 0.9 }, [1], [1]) };
    const results = await measure(
      {
        rows: [
          {
            ...wrong,
            subject: subject('ours', [{ ...iops(1), iopsPerCpu: 190e3, wrongReactor: 17 }]),
            reference: subject('theirs', [{ ...iops(1), iopsPerCpu: 200e3 }]),
          },
        ],
        sweeps: [],
      },
      { rounds: 1, seconds: 1, progress: false },
    );
    const report = { machine: MACHINE, results };
    expect(markdown(report)).to.match(
      /\| 190 k I\/Os a CPU second \| 200 k I\/Os a CPU second \(theirs\) \| 0\.95 \|.* 17 \|\n/,
    );
    expect(html(report)).to.include('<td>17</td>');
  });

  it('reads what the machine carries by itself, and shows it as a section', async () => {
    const limits = parseLimits(
      'crc32 20 GB/s\n# round trip of 64 B\nudp avg 14 us\nudp avg 15 us\n# nothing\n\n# memcpy\nmemcpy <4KiB> 30\n',
    );
    expect(limits).to.deep.equal([
      { title: 'checksum', lines: ['crc32 20 GB/s'] },
      { title: 'round trip of 64 B', lines: ['udp avg 14 us', 'udp avg 15 us'] },
      { title: 'memcpy', lines: ['memcpy <4KiB> 30'] },
    ]);
    const options = { rounds: 1, seconds: 1, progress: false };
    const results = await measure({ rows: [], sweeps: [] }, options);
    expect(markdown({ machine: MACHINE, limits, results })).to.include(
      'round trip of 64 B:\n\n```\nudp avg 14 us\nudp avg 15 us\n```\n',
    );
    expect(html({ machine: MACHINE, limits, results })).to.include('memcpy &lt;4KiB&gt; 30');
    expect(markdown({ machine: MACHINE, results })).not.to.include('without any protocol');
  });

  it('fails when a subject does', async () => {
    const rows = [
      { ...row('a', { metric: 'iops', atLeast: 1 }, [1], [1]), subject: subject('x', []) },
    ];
    let message = '';
    await measure({ rows, sweeps: [] }, { rounds: 1, seconds: 1, progress: false }).catch(
      (error: unknown) => {
        message = (error as Error).message;
      },
    );
    expect(message).to.equal('no figures');
  });

  it('writes a table, and a page that needs nothing else', async () => {
    const rows = [
      row('a', { metric: 'iops', atLeast: 0.9 }, [90_000], [100_000]),
      row('b', { metric: 'p50', atMost: 1.2 }, [100], [130]),
    ];
    const points = [1, 2, 4].map((x) => ({ x, subject: subject('curve', [iops(1000 * x)]) }));
    const sweeps = [
      { id: 's', title: 'read, memory', axis: 'depth' as const, points },
      { id: 't', title: 'by size', axis: 'block size' as const, points },
    ];
    const options = { rounds: 1, seconds: 2, progress: false };
    const report = { machine: MACHINE, results: await measure({ rows, sweeps }, options) };
    const text = markdown(report);
    expect(text).to.match(
      /\| work a \| 90 k IOPS \| 100 k IOPS \(theirs\) \| 0\.90 \| ≥ 0\.9 \| reached \|/,
    );
    expect(text).to.match(/\| work b \| 10000\.0 µs .* \| 1\.30 \| ≤ 1\.2 \| not reached \|/);
    const page = html(report);
    expect(page).to.include('Test &lt;processor&gt;');
    expect(page.match(/<svg/g)).to.have.length(3); // IOPS, latency and bandwidth; no CPU was measured
    expect(page).not.to.match(/<script|<link|src=|href="http/);
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-bench-test-'));
    try {
      writeReport(folder, report);
      const saved = JSON.parse(readFileSync(join(folder, 'report.json'), 'utf8')) as typeof report;
      expect(saved.results.rows[0]?.ratio).to.equal(0.9);
      expect(readFileSync(join(folder, 'index.html'), 'utf8')).to.include('<h1>nvmeof benchmark');
      expect(readFileSync(join(folder, 'report.md'), 'utf8')).to.equal(text);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });
});
