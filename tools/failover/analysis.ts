/**
 * What the log of a run says of each fault: the longest stall, how long until the host noticed and until I/O was as fast
 * as before, what failed; and whether that keeps the scenario's bounds. Pure.
 */
import type { CompletionLog, Operation } from './completion-log.ts';
import type { PathChange, PathView } from './host.ts';
import type { Fault, Scenario } from './scenario.ts';
import { comesBack, describeFault } from './scenario.ts';
import { unseen } from './unseen.ts';

/** A fault as it happened: when it had taken hold, and when it was taken back. */
export interface FaultRecord {
  readonly fault: Fault;
  /** ADDRESS:PORT of what it happened to. */
  readonly path: string;
  readonly beginMs: number;
  readonly endMs: number;
  /** When its target began to start again; absent: the fault ends no process. */
  readonly againMs?: number;
  /** Why it was no fault: what it should have done was not seen. */
  readonly missed?: string;
}

export interface PathRecord extends PathChange {
  readonly atMs: number;
}

/** The first request on a path that came back had ended. */
export interface PathUse {
  readonly path: string;
  readonly atMs: number;
}

export interface RunRecord {
  readonly scenario: Scenario;
  readonly log: CompletionLog;
  readonly faults: readonly FaultRecord[];
  readonly pathsAtStart: readonly PathView[];
  readonly paths: readonly PathRecord[];
  /** Where targets tell how many requests they completed; of others, what is live is taken for used. */
  readonly uses: readonly PathUse[];
  /** When no request was sent any more. */
  readonly durationMs: number;
  /** Requests that never ended. */
  readonly unfinished: number;
  /** Of the namespace, as the host saw it. */
  readonly bytesAtStart: bigint;
  readonly bytesAtEnd: bigint;
  /** Of the host. */
  readonly reconnectDelayMs: number;
  readonly blocksVerified: number;
  readonly mismatches: number;
  /** After the run, every block could be read. */
  readonly comparedAll: boolean;
  /** Requests sent again on another path; absent: the host does not do that. */
  readonly retries?: number | undefined;
}

export interface FaultResult {
  readonly name: string;
  readonly beginMs: number;
  readonly endMs: number;
  /** Until the target starts again, where the fault ends it: the start is no part of the loss. */
  readonly readStallMs: number;
  readonly writeStallMs: number;
  /** Of either, from when the target begins to start again. Absent: the fault ends no process. */
  readonly returnStallMs?: number;
  /** Absent: no path of the host's ceased to be live. */
  readonly detectMs?: number;
  /**
   * From the fault on until the last request had ended that failed, or was slower than the slowest before any fault;
   * then I/O was good for half a second, or for the rest of the time.
   */
  readonly recoverMs: number;
  /**
   * From the end of the fault until the path that it had taken was used again. Absent: none was lost, the fault has no end,
   * or the path did not come back.
   */
  readonly returnMs?: number;
  readonly errors: number;
  /** What was not kept, for a person; empty: all was. */
  readonly broken: readonly string[];
}

export interface RunResult {
  readonly faults: readonly FaultResult[];
  readonly requests: number;
  readonly errors: number;
  readonly broken: readonly string[];
  readonly passed: boolean;
}

/** Slower than this is slow, however fast it was before. */
const SLOW_MS_MIN = 20;
/** Good for so long, and the fault is over: what is slow afterwards is another matter. */
const SETTLED_MS = 500;
/** Requests before the first fault, without which nothing can be said of it. */
const BASELINE_MIN = 20;

interface Window {
  readonly from: number;
  readonly to: number;
}

/** From each fault to the next, or to the end. */
function windowsOf({ faults, durationMs }: RunRecord): Window[] {
  return faults.map(({ beginMs }, index) => ({
    from: beginMs,
    to: faults[index + 1]?.beginMs ?? durationMs,
  }));
}

/** Longest time without a completion of that kind, of which some part lies in the window. */
export function longestStall(ends: readonly number[], { from, to }: Window): number {
  let longest = 0;
  let last = 0;
  for (const end of [...ends.filter((each) => each <= to), to]) {
    if (end > from) longest = Math.max(longest, end - last);
    last = end;
  }
  return longest;
}

interface Digest {
  readonly ends: Readonly<Record<Operation, readonly number[]>>;
  /** Ends of requests that failed, of those that failed or were slow, and of the rest. */
  readonly failed: readonly number[];
  readonly good: readonly number[];
  readonly bad: readonly number[];
  readonly baseline: number;
}

function digest({ log, faults }: RunRecord): Digest {
  const first = faults[0]?.beginMs ?? 0;
  let slowest = 0;
  let baseline = 0;
  for (const { endMs, latencyMs, failed } of log) {
    if (endMs >= first || failed) continue;
    baseline++;
    slowest = Math.max(slowest, latencyMs);
  }
  const limit = Math.max(SLOW_MS_MIN, slowest);
  const ends: Record<Operation, number[]> = { read: [], write: [] };
  const failedAt: number[] = [];
  const bad: number[] = [];
  const good: number[] = [];
  for (const { endMs, latencyMs, operation, failed } of log) {
    if (failed) failedAt.push(endMs);
    else ends[operation].push(endMs);
    (failed || latencyMs > limit ? bad : good).push(endMs);
  }
  return { ends, failed: failedAt, good, bad, baseline };
}

const inside = (all: readonly number[], { from, to }: Window): number[] =>
  all.filter((at) => at >= from && at < to);

/**
 * The end of the last bad request before I/O was good for a while, and beyond the end of the fault; the end of the window if
 * nothing good came after it.
 */
export function recoveredAt(
  good: readonly number[],
  bad: readonly number[],
  window: Window,
  faultEnd: number,
): number {
  let since = window.from;
  let next = 0;
  for (const at of [...inside(bad, window), Infinity]) {
    let last: number | undefined;
    for (; (good[next] ?? Infinity) < Math.min(at, window.to); next++) {
      const end = good[next] ?? 0;
      if (end > since) last = end;
    }
    // Silence is not good: the next bad request is what ends it.
    if (last !== undefined && last >= Math.max(since, faultEnd) + SETTLED_MS) return since;
    if (at === Infinity) return last === undefined ? window.to : since;
    since = at;
  }
  return since;
}

/** When the path that a fault had taken was used again; undefined: it was not lost, Infinity: not within the window. */
export function returnedAt(
  { paths, uses }: Pick<RunRecord, 'paths' | 'uses'>,
  { path, fault, endMs }: FaultRecord,
  window: Window,
): number | undefined {
  if (!comesBack(fault)) return undefined;
  const changes = paths.filter(
    (each) => each.path === path && inside([each.atMs], window).length > 0,
  );
  const lost = changes.findIndex(({ state }) => state !== 'live');
  if (lost < 0) return undefined;
  // The last time that it was lost counts: a path may come back under loss, and go again.
  const last = changes.findLastIndex(({ state }) => state !== 'live');
  const live = changes.slice(last + 1).find(({ state }) => state === 'live');
  if (!live) return Infinity;
  const told = uses.find((each) => each.path === path && each.atMs >= live.atMs);
  // It may be back before the test knows that the fault is over.
  return Math.max(endMs, told?.atMs ?? live.atMs);
}

function resultOf(
  run: RunRecord,
  happened: FaultRecord,
  window: Window,
  { ends, failed, good, bad }: Digest,
): FaultResult {
  const { fault, beginMs, endMs, againMs } = happened;
  // Of an operation that the load does not have, nothing can stall.
  const stall = (operation: Operation, during: Window): number =>
    ends[operation].length === 0 ? 0 : longestStall(ends[operation], during);
  const startsAt = Math.min(againMs ?? Infinity, window.to);
  const loss = { from: window.from, to: startsAt };
  const start = { from: startsAt, to: window.to };
  const returned = returnedAt(run, happened, window);
  const noticed = run.paths.find(
    ({ atMs, state }) => state !== 'live' && inside([atMs], window).length > 0,
  );
  const measured = {
    ...{ name: describeFault(fault), beginMs, endMs },
    ...{ readStallMs: stall('read', loss), writeStallMs: stall('write', loss) },
    ...(startsAt < window.to
      ? { returnStallMs: Math.max(stall('read', start), stall('write', start)) }
      : {}),
    ...(noticed === undefined ? {} : { detectMs: noticed.atMs - beginMs }),
    recoverMs: recoveredAt(good, bad, window, endMs) - beginMs,
    ...(returned === undefined || returned === Infinity ? {} : { returnMs: returned - endMs }),
    errors: inside(failed, window).length,
  };
  const missed = happened.missed ?? unseen(run, happened);
  return {
    ...measured,
    broken: [
      ...(missed === undefined ? [] : [`the fault did not happen: ${missed}`]),
      ...brokenBounds(fault, measured, returned, run.reconnectDelayMs),
    ],
  };
}

const ms = (value: number): string => `${Math.round(value)} ms`;

function brokenBounds(
  { bounds }: Fault,
  found: Omit<FaultResult, 'broken'>,
  returned: number | undefined,
  reconnectDelayMs: number,
): string[] {
  const broken: string[] = [];
  for (const [operation, longest, own] of [
    ['read', found.readStallMs, bounds.readStallMs],
    ['write', found.writeStallMs, undefined],
  ] as const) {
    const stall = own ?? bounds.stallMs;
    if (stall === undefined || longest <= stall) continue;
    broken.push(`no ${operation} ended for ${ms(longest)}, ${ms(stall)} are allowed`);
  }
  const onReturn = found.returnStallMs ?? 0;
  if (bounds.returnStallMs !== undefined && onReturn > bounds.returnStallMs) {
    broken.push(
      `while the target started again, nothing ended for ${ms(onReturn)}, ${ms(bounds.returnStallMs)} are allowed`,
    );
  }
  if (bounds.detectMs !== undefined && !((found.detectMs ?? Infinity) <= bounds.detectMs)) {
    const took = found.detectMs === undefined ? 'not at all' : `after ${ms(found.detectMs)}`;
    broken.push(`the host noticed ${took}, ${ms(bounds.detectMs)} are allowed`);
  }
  if (bounds.recoverMs !== undefined && found.recoverMs > bounds.recoverMs) {
    broken.push(`recovered after ${ms(found.recoverMs)}, ${ms(bounds.recoverMs)} are allowed`);
  }
  const back = reconnectDelayMs + (bounds.returnMs ?? Infinity);
  if (bounds.returnMs !== undefined && !((found.returnMs ?? Infinity) <= back)) {
    const took = returned === undefined ? 'was not lost' : 'was not used again';
    const what = found.returnMs === undefined ? took : `was used again after ${ms(found.returnMs)}`;
    broken.push(
      `the path ${what}, ${ms(back)} are allowed (${ms(reconnectDelayMs)} of them the reconnect delay)`,
    );
  }
  if (found.errors > bounds.errors) {
    broken.push(`${found.errors} requests failed, ${bounds.errors} are allowed`);
  }
  return broken;
}

export function analyse(run: RunRecord): RunResult {
  const figures = digest(run);
  const windows = windowsOf(run);
  const found = run.faults.map((record, index) => ({
    place: run.scenario.faults.indexOf(record.fault),
    result: resultOf(run, record, windows[index] ?? { from: 0, to: run.durationMs }, figures),
  }));
  // One that waited for its target has begun after others that follow it in the scenario.
  const faults = found.toSorted((a, b) => a.place - b.place).map(({ result }) => result);
  const broken: string[] = [];
  if (run.mismatches > 0)
    broken.push(`${run.mismatches} blocks held something else than was written`);
  if (run.unfinished > 0) broken.push(`${run.unfinished} requests never ended`);
  if (run.blocksVerified === 0) broken.push('no block was compared');
  else if (!run.comparedAll) broken.push('not every block could be read after the run');
  if (figures.baseline < BASELINE_MIN) {
    broken.push(
      `${figures.baseline} requests ended before the first fault: too few to compare with`,
    );
  }
  if (run.log.full) broken.push(`more than ${run.log.length} requests: take a shorter run`);
  const missing = run.scenario.faults.length - run.faults.length;
  if (missing > 0) broken.push(`${missing} faults never happened`);
  const early = figures.failed.filter((at) => at < (run.faults[0]?.beginMs ?? 0)).length;
  if (early > 0) broken.push(`${early} requests failed before the first fault`);
  return {
    faults,
    requests: run.log.length,
    errors: figures.failed.length,
    broken,
    passed: broken.length === 0 && faults.every((fault) => fault.broken.length === 0),
  };
}
