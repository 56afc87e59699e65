/** What one measurement gives, and how several become one. */

export interface Figures {
  readonly iops: number;
  /** Bytes a second. */
  readonly bandwidth: number;
  /** Medians and tails of the latency, in µs; absent: not measured. */
  readonly p50?: number;
  readonly p99?: number;
  /** CPU time of one command in µs, user and system. */
  readonly hostCpu?: number;
  readonly targetCpu?: number;
  /** Commands to a second of the target's CPU time. */
  readonly iopsPerCpu?: number;
  /** CPU time of the target in this time, as a share of one core. */
  readonly cpuShare?: number;
  /** Bytes by which the target's memory grows with a queue that is connected and idle. */
  readonly memoryPerQueue?: number;
  /** Packets that had to be sent again: loss. */
  readonly retransmits?: number;
  /** Packets that arrived at another reactor than their queue pair's, on both sides. */
  readonly wrongReactor?: number;
}

export type Metric = keyof Figures;

/** Something that can be measured again and again. */
export interface Subject {
  readonly name: string;
  measure(seconds: number): Promise<Figures>;
}

/** What must not be exceeded, where there is nothing to measure beside. */
export function budget(name: string, figures: Partial<Figures>): Subject {
  const all = { iops: NaN, bandwidth: NaN, ...figures };
  return { name, measure: () => Promise.resolve(all) };
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[sorted.length >> 1] ?? NaN;
}

const METRICS = [
  ...(['iops', 'bandwidth', 'p50', 'p99'] as const),
  ...(['hostCpu', 'targetCpu', 'retransmits', 'wrongReactor'] as const),
  ...(['iopsPerCpu', 'cpuShare', 'memoryPerQueue'] as const),
] satisfies readonly Metric[];

/** The median of each figure by itself. */
export function medians(all: readonly Figures[]): Figures {
  const result: Partial<Record<Metric, number>> = {};
  for (const metric of METRICS) {
    const values = all.flatMap((figures) => figures[metric] ?? []);
    if (values.length > 0) result[metric] = median(values);
  }
  return { iops: NaN, bandwidth: NaN, ...result };
}
