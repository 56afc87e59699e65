/** A run's log as curves over time: rates and latencies of short steps, path states as spans. Pure. */
import type { RunRecord } from './analysis.ts';
import type { PathState } from './host.ts';

/** Steps of a curve, at most. */
const STEPS = 300;
const STEP_MS_MIN = 20;
/** A logarithmic axis has no 0. */
const LATENCY_MS_MIN = 0.001;

/** Seconds, and a value; null: nothing ended in that step. */
export type Curve = readonly (readonly [seconds: number, value: number | null])[];

export interface Series {
  readonly stepMs: number;
  /** A second. */
  readonly read: Curve;
  readonly write: Curve;
  readonly failed: Curve;
  /** Milliseconds. */
  readonly median: Curve;
  readonly worst: Curve;
}

export function series({ log, durationMs }: RunRecord): Series {
  const stepMs = Math.max(STEP_MS_MIN, Math.ceil(durationMs / STEPS));
  const steps = Math.max(1, Math.ceil(durationMs / stepMs));
  const counts = {
    read: new Array<number>(steps).fill(0),
    write: new Array<number>(steps).fill(0),
  };
  const failures = new Array<number>(steps).fill(0);
  const latencies = Array.from({ length: steps }, (): number[] => []);
  for (const { endMs, latencyMs, operation, failed } of log) {
    const step = Math.min(steps - 1, Math.floor(endMs / stepMs));
    const counted = failed ? failures : counts[operation];
    counted[step] = (counted[step] ?? 0) + 1;
    if (!failed) latencies[step]?.push(Math.max(latencyMs, LATENCY_MS_MIN));
  }
  const curve = (value: (step: number) => number | null): Curve =>
    Array.from({ length: steps }, (_, step) => [(step * stepMs) / 1000, value(step)] as const);
  const rate = (all: readonly number[]): Curve =>
    curve((step) => {
      // The last step may be shorter.
      const lengthMs = Math.min(stepMs, durationMs - step * stepMs);
      return ((all[step] ?? 0) * 1000) / lengthMs;
    });
  for (const each of latencies) each.sort((a, b) => a - b);
  return {
    ...{ stepMs, read: rate(counts.read), write: rate(counts.write), failed: rate(failures) },
    median: curve((step) => latencies[step]?.[latencies[step].length >> 1] ?? null),
    worst: curve((step) => latencies[step]?.at(-1) ?? null),
  };
}

export interface PathSpan {
  readonly path: string;
  readonly state: PathState;
  readonly fromMs: number;
  readonly toMs: number;
}

/** Every path from the beginning of the run to its end. */
export function pathSpans({ paths, pathsAtStart, durationMs }: RunRecord): PathSpan[] {
  const spans: PathSpan[] = [];
  const names = new Set([...pathsAtStart, ...paths].map(({ path }) => path));
  for (const path of names) {
    let state = pathsAtStart.find((each) => each.path === path)?.state ?? 'connecting';
    let fromMs = 0;
    for (const change of paths) {
      if (change.path !== path) continue;
      const toMs = Math.min(change.atMs, durationMs);
      spans.push({ path, state, fromMs, toMs });
      state = change.state;
      fromMs = toMs;
    }
    spans.push({ path, state, fromMs, toMs: durationMs });
  }
  return spans.filter((span) => span.toMs > span.fromMs);
}
