/**
 * The native side's live counters (queue pairs, windows, buffers, backings, …) before and after: what a test opened is
 * closed again when it is over. A lease keeps the reactors running in between, for a runtime that stops closes everything
 * and would hide what was forgotten.
 */
import { expect } from 'chai';
import { acquireRuntime } from '../../native/shared-runtime.ts';
import type { RuntimeLease } from '../../native/shared-runtime.ts';

/** Native frees on its reactors: a moment after the promise of a close, at most. */
const SETTLE_MS = 2000;
const LOOK_MS = 5;

export type LiveCounters = Readonly<Record<string, number>>;

/** Those that are not zero. */
export function liveCounters(lease: RuntimeLease): LiveCounters {
  const all = Object.entries(lease.runtime.door.counters());
  return Object.fromEntries(all.filter(([name, value]) => name.startsWith('live.') && value !== 0));
}

/** Resolves when `holds` does; rejects with `describe` when it does not within `ms`. */
export async function eventually(
  holds: () => boolean,
  ms: number,
  describe: () => string,
): Promise<void> {
  const deadline = performance.now() + ms;
  while (!holds()) {
    if (performance.now() > deadline) throw new Error(`not within ${ms} ms: ${describe()}`);
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

/** Waits, for a bounded time, until the live counters are those of before; the failure shows the difference. */
export async function expectLiveCounters(lease: RuntimeLease, before: LiveCounters): Promise<void> {
  const same = (): boolean => {
    const now = liveCounters(lease);
    const names = new Set([...Object.keys(before), ...Object.keys(now)]);
    return [...names].every((name) => before[name] === now[name]);
  };
  await eventually(same, SETTLE_MS, () => 'live counters as before').catch(() => {
    expect(liveCounters(lease)).to.deep.equal(before);
  });
}

/**
 * For a `describe`: each of its tests must leave the live counters as it found them. Call it before other hooks are set,
 * so that these have ended by then. Returns the lease that its reactors run on.
 */
export function keepLiveCounters(cores: readonly number[] = [-1]): () => RuntimeLease {
  let lease: RuntimeLease | undefined;
  let before: LiveCounters = {};
  const current = (): RuntimeLease => {
    if (!lease) throw new Error('the reactors run during tests only');
    return lease;
  };
  beforeEach(() => {
    lease = acquireRuntime({ cores });
    before = liveCounters(lease);
  });
  afterEach(async () => {
    try {
      await expectLiveCounters(current(), before);
    } finally {
      lease?.release();
      lease = undefined;
    }
  });
  return current;
}
