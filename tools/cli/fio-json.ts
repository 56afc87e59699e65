/**
 * A bench result in the JSON layout that fio 3.x prints (`--output-format=json`), so that fio's plotting tools read
 * it. Latency is measured from submission to completion as one, as fio's synchronous engines do: slat_ns is zero and
 * lat_ns equals clat_ns.
 */
import type { BenchSide } from '../../native/index.ts';

export interface LatencyJson {
  readonly min: number;
  readonly max: number;
  readonly mean: number;
  readonly stddev: number;
  readonly N: number;
  readonly percentile?: Readonly<Record<string, number>>;
}

export interface BenchReport {
  readonly jobName: string;
  readonly options: Readonly<Record<string, string>>;
  readonly read: BenchSide;
  readonly write: BenchSide;
  readonly verifyErrors: bigint;
  /** CPU seconds of this process, user and system, during the run. */
  readonly userSeconds: number;
  readonly systemSeconds: number;
  readonly elapsedSeconds: number;
  readonly voluntarySwitches: number;
  readonly involuntarySwitches: number;
  readonly majorFaults: number;
  readonly minorFaults: number;
  readonly time: Date;
}

const NO_LATENCY: LatencyJson = { min: 0, max: 0, mean: 0, stddev: 0, N: 0 };

/** fio prints percentiles with six decimals as keys. */
export function percentileKey(percentile: number): string {
  return percentile.toFixed(6);
}

function latency(side: BenchSide): LatencyJson {
  return {
    min: Number(side.latencyMin),
    max: Number(side.latencyMax),
    mean: side.latencyMean,
    stddev: side.latencyStddev,
    N: Number(side.commands),
  };
}

function percentiles(side: BenchSide): Record<string, number> {
  return Object.fromEntries(
    side.percentiles.map(([percentile, ns]) => [percentileKey(percentile), Number(ns)]),
  );
}

export function bytesPerSecond(side: BenchSide): number {
  return side.runtimeNs === 0n ? 0 : (Number(side.bytes) * 1e9) / Number(side.runtimeNs);
}

export function commandsPerSecond(side: BenchSide): number {
  return side.runtimeNs === 0n ? 0 : (Number(side.commands) * 1e9) / Number(side.runtimeNs);
}

/** The whole run is one sample of bandwidth and IOPS. */
function sideJson(side: BenchSide): Record<string, unknown> {
  const idle = side.commands === 0n;
  const bandwidth = bytesPerSecond(side);
  const kibibytes = bandwidth / 1024;
  const iops = commandsPerSecond(side);
  return {
    io_bytes: Number(side.bytes),
    io_kbytes: Math.floor(Number(side.bytes) / 1024),
    bw_bytes: Math.round(bandwidth),
    bw: Math.round(kibibytes),
    iops,
    runtime: idle ? 0 : Math.round(Number(side.runtimeNs) / 1e6),
    total_ios: Number(side.commands),
    short_ios: 0,
    drop_ios: 0,
    slat_ns: NO_LATENCY,
    clat_ns: idle ? NO_LATENCY : { ...latency(side), percentile: percentiles(side) },
    lat_ns: idle ? NO_LATENCY : latency(side),
    bw_min: Math.round(kibibytes),
    bw_max: Math.round(kibibytes),
    bw_agg: idle ? 0 : 100,
    bw_mean: kibibytes,
    bw_dev: 0,
    bw_samples: idle ? 0 : 1,
    iops_min: Math.round(iops),
    iops_max: Math.round(iops),
    iops_mean: iops,
    iops_stddev: 0,
    iops_samples: idle ? 0 : 1,
  };
}

const NO_SIDE: BenchSide = {
  commands: 0n,
  bytes: 0n,
  errors: 0n,
  runtimeNs: 0n,
  latencyMin: 0n,
  latencyMax: 0n,
  latencyMean: 0,
  latencyStddev: 0,
  percentiles: [],
};

export function fioJson(report: BenchReport): Record<string, unknown> {
  const percent = (seconds: number): number =>
    report.elapsedSeconds === 0 ? 0 : (100 * seconds) / report.elapsedSeconds;
  const failed = report.read.errors + report.write.errors + report.verifyErrors;
  return {
    'fio version': 'fio-3.33',
    timestamp: Math.floor(report.time.getTime() / 1000),
    timestamp_ms: report.time.getTime(),
    time: report.time.toUTCString(),
    jobs: [
      {
        jobname: report.jobName,
        groupid: 0,
        // errno 5, EIO, as fio reports a failed command or a verify mismatch.
        error: failed === 0n ? 0 : 5,
        eta: 0,
        elapsed: Math.ceil(report.elapsedSeconds),
        'job options': report.options,
        read: sideJson(report.read),
        write: sideJson(report.write),
        trim: sideJson(NO_SIDE),
        sync: { total_ios: 0, lat_ns: NO_LATENCY },
        job_runtime: Math.round(report.elapsedSeconds * 1000),
        usr_cpu: percent(report.userSeconds),
        sys_cpu: percent(report.systemSeconds),
        ctx: report.voluntarySwitches + report.involuntarySwitches,
        majf: report.majorFaults,
        minf: report.minorFaults,
        total_err: Number(failed),
        first_error: failed === 0n ? 0 : 5,
        latency_depth: Number(report.options['iodepth'] ?? '1'),
        latency_target: 0,
        latency_percentile: 100,
        latency_window: 0,
      },
    ],
    disk_util: [],
  };
}
