/**
 * Which reactor takes a new queue. Every second the busy share of each reactor is measured: the part of that second it spent on loop
 * iterations that found work. A reactor's load is its share at the last measurement, and QUEUE_SHARE for each I/O queue placed there
 * since and not gone again: these are not in the measurement yet, and a burst of connects must not fall on one core.
 *
 * - An I/O queue goes to the least load. Loads within TOLERANCE of the least are equal, for noise must not outweigh what is there:
 *   among them the fewest I/O queues, then the least load, the fewest admin queues, the lowest index.
 * - An admin queue goes where the fewest I/O queues are; among equals the fewest admin queues, the least load, the lowest index.
 *
 * Only the reactors of the port that the queue came in at are looked at. Nothing is remembered of a host: one that comes back is
 * placed by the load of now, so new queues shift away from a core that is busier than the others. Queues that are connected stay
 * where they are. The same calls at the same times of the clock with the same measurements give the same places.
 */
import type { Clock, Timer } from '../native/common/clock.ts';
import type { ReactorIndex, ReactorInfo } from '../native/index.ts';

export const MEASURE_MS = 1000;

/** Of a core: what an I/O queue counts for until a measurement sees it. */
export const QUEUE_SHARE = 1 / 16;

/** Of a core: loads this close are equal. */
export const TOLERANCE = 1 / 10;

export interface PlacementView {
  readonly reactor: ReactorIndex;
  /** -1: not pinned. */
  readonly core: number;
  readonly ioQueues: number;
  readonly adminQueues: number;
  /** At the last measurement, 0 to 1. */
  readonly busyShare: number;
  /** The same and what was placed since. */
  readonly load: number;
}

/** Chooses one of the reactors it is given, of which there is at least one; replaceable by whoever embeds the target. */
export type PlacementRule = (admin: boolean, loads: readonly PlacementView[]) => ReactorIndex;

/** A queue's place, for as long as the queue lives. */
export interface Place {
  readonly reactor: ReactorIndex;
  /** Further calls do nothing. */
  release(): void;
}

export interface PlacementOptions {
  readonly clock: Clock;
  /** What the reactors did so far. */
  readonly measure: () => readonly ReactorInfo[];
  readonly rule?: PlacementRule | undefined;
}

function byKeys(keys: (view: PlacementView) => readonly number[]) {
  return (a: PlacementView, b: PlacementView): number => {
    const left = keys(a);
    const right = keys(b);
    const index = left.findIndex((key, at) => key !== right[at]);
    return index < 0 ? 0 : (left[index] ?? 0) - (right[index] ?? 0);
  };
}

const ADMIN_ORDER = byKeys(({ ioQueues, adminQueues, load, reactor }) => [
  ioQueues,
  adminQueues,
  load,
  reactor,
]);
const IO_ORDER = byKeys(({ ioQueues, load, adminQueues, reactor }) => [
  ioQueues,
  load,
  adminQueues,
  reactor,
]);

export const leastLoaded: PlacementRule = (admin, loads) => {
  const least = Math.min(...loads.map(({ load }) => load));
  const [best] = admin
    ? loads.toSorted(ADMIN_ORDER)
    : loads.filter(({ load }) => load <= least + TOLERANCE).toSorted(IO_ORDER);
  return best?.reactor ?? 0;
};

interface Load {
  readonly core: number;
  ioQueues: number;
  adminQueues: number;
  busyNs: bigint;
  busyShare: number;
  placedSince: number;
}

export class Placement {
  readonly #clock: Clock;
  readonly #measure: () => readonly ReactorInfo[];
  readonly #rule: PlacementRule;
  readonly #loads = new Map<ReactorIndex, Load>();
  #measuredAt: number;
  /** Counts measurements: a queue of an earlier one is within the busy share. */
  #round = 0;
  #timer: Timer;

  constructor({ clock, measure, rule = leastLoaded }: PlacementOptions) {
    this.#clock = clock;
    this.#measure = measure;
    this.#rule = rule;
    for (const { index, core, busyNs } of measure()) {
      const nothing = { ioQueues: 0, adminQueues: 0, busyShare: 0, placedSince: 0 };
      this.#loads.set(index, { core, busyNs, ...nothing });
    }
    this.#measuredAt = clock.now();
    this.#timer = this.#arm();
  }

  /** No more measurements. */
  stop(): void {
    this.#timer.cancel();
  }

  /** Picks one of these reactors and counts the queue there until it is released. */
  place(admin: boolean, among: readonly ReactorIndex[]): Place {
    const reactor = this.#rule(admin, this.view(among));
    const load = among.includes(reactor) ? this.#loads.get(reactor) : undefined;
    if (!load) {
      throw new RangeError(
        `placement chose reactor ${reactor}, which is none of ${among.join(', ')}`,
      );
    }
    if (admin) load.adminQueues++;
    else {
      load.ioQueues++;
      load.placedSince++;
    }
    return { reactor, release: this.#releaseOnce(admin, load) };
  }

  /** What is where now: of all reactors, or of these. */
  view(among: readonly ReactorIndex[] = [...this.#loads.keys()]): PlacementView[] {
    return among.flatMap((reactor) => {
      const found = this.#loads.get(reactor);
      if (!found) return [];
      const { core, ioQueues, adminQueues, busyShare, placedSince } = found;
      const load = busyShare + placedSince * QUEUE_SHARE;
      return [{ reactor, core, ioQueues, adminQueues, busyShare, load }];
    });
  }

  #releaseOnce(admin: boolean, load: Load): () => void {
    const placedIn = this.#round;
    let released = false;
    return () => {
      if (released) return;
      released = true;
      if (admin) load.adminQueues--;
      else {
        load.ioQueues--;
        if (placedIn === this.#round) load.placedSince--;
      }
    };
  }

  #arm(): Timer {
    return this.#clock.after(MEASURE_MS, () => {
      this.#look();
      this.#timer = this.#arm();
    });
  }

  /** By the clock, not by the idle time that reactors report: one that sleeps reports it when it wakes. */
  #look(): void {
    const now = this.#clock.now();
    const elapsedNs = (now - this.#measuredAt) * 1e6;
    if (elapsedNs <= 0) return;
    this.#measuredAt = now;
    this.#round++;
    for (const { index, busyNs } of this.#measure()) {
      const load = this.#loads.get(index);
      if (!load) continue;
      load.busyShare = Math.min(1, Math.max(0, Number(busyNs - load.busyNs) / elapsedNs));
      load.busyNs = busyNs;
      load.placedSince = 0;
    }
  }
}
