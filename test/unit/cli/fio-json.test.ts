/** A bench result in fio's layout, and as a table. */
import { expect } from 'chai';
import type { BenchSide } from '../../../native/index.ts';
import { fioJson, percentileKey } from '../../../tools/cli/fio-json.ts';
import type { BenchReport } from '../../../tools/cli/fio-json.ts';
import { BENCH_HEAD, benchRow, benchTable, microseconds } from '../../../tools/cli/tables.ts';

const PERCENTILES = [1, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.5, 99.9, 99.95, 99.99];

const side: BenchSide = {
  commands: 1000n,
  bytes: 4_096_000n,
  errors: 0n,
  runtimeNs: 2_000_000_000n,
  latencyMin: 10_000n,
  latencyMax: 900_000n,
  latencyMean: 64_000.5,
  latencyStddev: 1200.25,
  percentiles: PERCENTILES.map((p) => [p, BigInt(Math.round(p * 1000))] as const),
};
const idle: BenchSide = { ...side, commands: 0n, bytes: 0n, runtimeNs: 0n, percentiles: [] };

const report: BenchReport = {
  jobName: 'nqn.2024-01.org.example:disk',
  options: { rw: 'randread', bs: '4096', iodepth: '32' },
  read: side,
  write: idle,
  verifyErrors: 0n,
  userSeconds: 1,
  systemSeconds: 0.5,
  elapsedSeconds: 2,
  voluntarySwitches: 3,
  involuntarySwitches: 4,
  majorFaults: 0,
  minorFaults: 9,
  time: new Date('2026-11-29T19:00:00Z'),
};

interface Shape {
  readonly [name: string]: unknown;
}

/** Names that fio 3.33 prints for a direction, from its own output. */
const FIO_SIDE = [
  'io_bytes',
  'io_kbytes',
  'bw_bytes',
  'bw',
  'iops',
  'runtime',
  'total_ios',
  'short_ios',
  'drop_ios',
  'slat_ns',
  'clat_ns',
  'lat_ns',
  'bw_min',
  'bw_max',
  'bw_agg',
  'bw_mean',
  'bw_dev',
  'bw_samples',
  'iops_min',
  'iops_max',
  'iops_mean',
  'iops_stddev',
  'iops_samples',
];

describe('bench output', () => {
  const json = JSON.parse(JSON.stringify(fioJson(report))) as {
    'fio version': string;
    timestamp: number;
    jobs: Record<string, Shape>[];
  };
  const job = json.jobs[0] ?? {};

  it('has the names of fio, in its order', () => {
    expect(json['fio version']).to.match(/^fio-3\./);
    expect(json.timestamp).to.equal(1_795_978_800);
    for (const name of ['read', 'write', 'trim']) {
      expect(Object.keys(job[name] ?? {}), name).to.deep.equal(FIO_SIDE);
    }
    expect(job).to.include({ usr_cpu: 50, sys_cpu: 25, ctx: 7, minf: 9, error: 0, elapsed: 2 });
  });

  it('has the units of fio: KiB/s, ms, ns', () => {
    expect(job['read']).to.include({
      io_bytes: 4_096_000,
      io_kbytes: 4000,
      bw_bytes: 2_048_000,
      bw: 2000,
      iops: 500,
      runtime: 2000,
      total_ios: 1000,
    });
    expect(job['read']?.['clat_ns']).to.deep.include({
      min: 10_000,
      max: 900_000,
      mean: 64_000.5,
      stddev: 1200.25,
      N: 1000,
    });
    const { percentile } = job['read']?.['clat_ns'] as { percentile: Record<string, number> };
    expect(Object.keys(percentile)).to.deep.equal(PERCENTILES.map(percentileKey));
    expect(percentile['99.900000']).to.equal(99_900);
    expect(job['write']).to.include({ iops: 0, runtime: 0, total_ios: 0 });
  });

  it('reports failed commands and wrong data as an error', () => {
    for (const broken of [
      { ...report, verifyErrors: 1n },
      { ...report, write: { ...idle, errors: 2n } },
    ]) {
      const [failed] = fioJson(broken)['jobs'] as { error: number }[];
      expect(failed?.error).to.equal(5);
    }
  });

  it('is a table for people', () => {
    const row = benchRow({ name: 'random read, QD 32', side, cpuPercent: [99.6, 12] });
    expect(row).to.deep.equal([
      'random read, QD 32',
      '500',
      '2.0',
      '64.0 µs',
      '50.0 µs',
      '99.0 µs',
      '99.9 µs',
      '100 % 12 %',
    ]);
    expect(row).to.have.length(BENCH_HEAD.length);
    expect(benchTable([{ name: 'x', side, cpuPercent: [1] }]))
      .to.contain('IOPS')
      .and.to.contain('500');
    expect(benchRow({ name: 'x', side: idle, cpuPercent: [] })[4]).to.equal('-');
    expect([microseconds(999), microseconds(150_000), microseconds(250_000_000)]).to.deep.equal([
      '1.0 µs',
      '150 µs',
      '250 ms',
    ]);
  });
});
