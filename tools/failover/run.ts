/**
 * Runs one scenario: load on the host, faults at their times, all of it verified at the end. Knows the host by its
 * interface and the targets as processes; time is real.
 */
import { sleep, within } from '../../native/common/clock.ts';
import type { Clock } from '../../native/common/clock.ts';
import { analyse } from './analysis.ts';
import type { FaultRecord, PathRecord, PathUse, RunRecord, RunResult } from './analysis.ts';
import type { FaultyTarget } from './faulty-target.ts';
import type { FailoverHost, PathChange } from './host.ts';
import { beginFault } from './inject.ts';
import { lengthOf } from './scenario.ts';
import type { Fault, Scenario } from './scenario.ts';
import { VerifiedLoad, checkLoad } from './verified-load.ts';
import type { LoadError, LoadOptions, Mismatch } from './verified-load.ts';

export interface RunOptions {
  readonly scenario: Scenario;
  readonly host: FailoverHost;
  readonly targets: readonly FaultyTarget[];
  readonly nsid: number;
  /** Of the host. */
  readonly reconnectDelayMs: number;
  readonly load: LoadOptions;
  readonly clock: Clock;
  /** Ends the run before its time. */
  readonly signal?: AbortSignal;
  /** What happens, for a person who watches. */
  readonly note?: (text: string) => void;
}

export interface RunOutcome {
  readonly record: RunRecord;
  readonly result: RunResult;
  readonly load: LoadOptions;
  readonly errors: readonly LoadError[];
  readonly mismatches: readonly Mismatch[];
  /** Places that a failed write may have changed or not. */
  readonly inDoubt: number;
}

/** For requests that are in flight at the end: longer than a command's own timeout. */
const DRAIN_MS = 40_000;

export async function runScenario(options: RunOptions): Promise<RunOutcome> {
  const { scenario, host, clock, note = () => undefined } = options;
  checkLoad(host.io, options.load);
  const load = new VerifiedLoad(host.io, clock, options.load);
  const paths: PathRecord[] = [];
  const bytes = host.io.lbaCount * BigInt(host.io.lbaSize);
  note(`${scenario.name}: writing every block once`);
  await load.prepare();
  const before = { retries: host.retries ?? 0 };
  const uses: PathUse[] = [];
  const pathsAtStart = [...host.paths];
  const onPath = (change: PathChange): void => {
    paths.push({ ...change, atMs: load.elapsedMs });
    const why = change.reason === '' ? '' : `: ${change.reason}`;
    note(`${seconds(load.elapsedMs)} ${change.path} is ${change.state}${why}`);
    if (change.state === 'live')
      void firstUse(options, load, change.path).then((use) => use && uses.push(use));
  };
  host.on('pathChanged', onPath);
  load.start();
  const faults: FaultRecord[] = [];
  try {
    const happening = new Faults(options, load, faults, bytes);
    await happening.run();
    await until(options, load, scenario.duration);
  } finally {
    await within(clock, DRAIN_MS, load.stop());
    host.off('pathChanged', onPath);
  }
  const durationMs = load.elapsedMs;
  const unfinished = load.unfinished;
  note(`${scenario.name}: comparing every block`);
  const comparedAll =
    unfinished === 0 &&
    (await load.verifyAll().then(
      () => true,
      () => false,
    ));
  const record: RunRecord = {
    ...{ scenario, log: load.log, faults, pathsAtStart, paths, uses, durationMs },
    ...{ unfinished, comparedAll, reconnectDelayMs: options.reconnectDelayMs },
    ...{ bytesAtStart: bytes, bytesAtEnd: host.io.lbaCount * BigInt(host.io.lbaSize) },
    blocksVerified: load.blocksVerified,
    mismatches: load.mismatchCount,
    retries: host.retries === undefined ? undefined : host.retries - before.retries,
  };
  const { errors, mismatches, inDoubt } = load;
  return { record, result: analyse(record), load: options.load, errors, mismatches, inDoubt };
}

/** How often a target is asked whether a path that came back is used. */
const USE_LOOK_MS = 1;

/** Undefined: the target does not tell, or is not used before the run ends. */
async function firstUse(
  { clock, scenario, targets }: RunOptions,
  load: VerifiedLoad,
  path: string,
): Promise<PathUse | undefined> {
  const target = targets.find(({ endpoint }) => endpoint === path);
  if (!target?.ioCommands) return undefined;
  try {
    const before = await target.ioCommands();
    while (load.elapsedMs < scenario.duration) {
      if ((await target.ioCommands()) > before) return { path, atMs: load.elapsedMs };
      await sleep(clock, USE_LOOK_MS);
    }
  } catch {
    // It went again.
  }
  return undefined;
}

const seconds = (ms: number): string => `${(ms / 1000).toFixed(2)} s`;

/** How often somebody who waits looks whether the run was given up. */
const LOOK_MS = 100;

async function until(
  { clock, signal }: Pick<RunOptions, 'clock' | 'signal'>,
  load: VerifiedLoad,
  ms: number,
): Promise<void> {
  while (load.elapsedMs < ms) {
    signal?.throwIfAborted();
    await sleep(clock, Math.min(LOOK_MS, ms - load.elapsedMs));
  }
}

/** The faults of a run, each in its time; one that cannot begin or end fails the run. */
class Faults {
  readonly #options: RunOptions;
  readonly #load: VerifiedLoad;
  readonly #done: FaultRecord[];
  readonly #bytes: bigint;

  constructor(options: RunOptions, load: VerifiedLoad, done: FaultRecord[], bytes: bigint) {
    this.#options = options;
    this.#load = load;
    this.#done = done;
    this.#bytes = bytes;
  }

  async run(): Promise<void> {
    const ending: Promise<void>[] = [];
    /** Targets that are ended and started again: what else happens to one waits for that. */
    const startingAgain = new Map<number, Promise<void>>();
    try {
      for (const fault of this.#options.scenario.faults) {
        await until(this.#options, this.#load, fault.at);
        const happening = this.#happen(fault, startingAgain.get(fault.target));
        ending.push(happening);
        if ('after' in fault) startingAgain.set(fault.target, happening);
        // What fails is told by the wait below.
        happening.catch(() => undefined);
      }
    } finally {
      await Promise.all(ending);
    }
  }

  async #happen(fault: Fault, before: Promise<void> | undefined): Promise<void> {
    const { targets, nsid, note = () => undefined } = this.#options;
    const target = targets[fault.target];
    if (!target) throw new RangeError(`there is no target ${fault.target}`);
    await before;
    const beginMs = this.#load.elapsedMs;
    note(`${seconds(beginMs)} ${fault.kind} begins`);
    const index = this.#done.push({ fault, path: target.endpoint, beginMs, endMs: Infinity }) - 1;
    const end = await beginFault(fault, { target, targets, nsid, namespaceBytes: this.#bytes });
    await until(this.#options, this.#load, beginMs + lengthOf(fault));
    const again = 'after' in fault ? { againMs: this.#load.elapsedMs } : {};
    const missed = await end();
    const endMs = this.#load.elapsedMs;
    this.#done[index] = {
      ...{ fault, path: target.endpoint, beginMs, endMs, ...again },
      ...(missed === undefined ? {} : { missed }),
    };
    note(`${seconds(endMs)} ${fault.kind} is over`);
  }
}
