/**
 * Which reactor takes a new queue: an I/O queue goes where the fewest I/O queues are, and among equals where the core was least busy
 * since the last look; an admin queue goes where the fewest I/O queues are, and among equals the fewest admin queues.
 */
import type { ReactorIndex, ReactorInfo } from '../native/index.ts';

interface Load {
  ioQueues: number;
  adminQueues: number;
  busyNs: bigint;
  idleNs: bigint;
  /** Busy part of the time between the last two looks, 0 to 1. */
  busyShare: number;
}

export interface PlacementView {
  readonly reactor: ReactorIndex;
  readonly ioQueues: number;
  readonly adminQueues: number;
  readonly busyShare: number;
}

/** Chooses a reactor; replaceable by whoever embeds the target. */
export type PlacementRule = (admin: boolean, loads: readonly PlacementView[]) => ReactorIndex;

function byKeys(keys: (view: PlacementView) => readonly number[]) {
  return (a: PlacementView, b: PlacementView): number => {
    const left = keys(a);
    const right = keys(b);
    const index = left.findIndex((key, at) => key !== right[at]);
    return index < 0 ? 0 : (left[index] ?? 0) - (right[index] ?? 0);
  };
}

export const leastLoaded: PlacementRule = (admin, loads) => {
  const order = admin
    ? byKeys((view) => [view.ioQueues, view.adminQueues, view.busyShare, view.reactor])
    : byKeys((view) => [view.ioQueues, view.busyShare, view.adminQueues, view.reactor]);
  return [...loads].sort(order)[0]?.reactor ?? 0;
};

export class Placement {
  readonly #rule: PlacementRule;
  readonly #loads = new Map<ReactorIndex, Load>();

  constructor(rule: PlacementRule = leastLoaded) {
    this.#rule = rule;
  }

  /** Picks a reactor and counts the queue there; `release` when it is gone. */
  place(admin: boolean, reactors: readonly ReactorInfo[]): ReactorIndex {
    const index = this.#rule(admin, this.view(reactors));
    const load = this.#loads.get(index);
    if (!load) throw new RangeError(`placement chose reactor ${index}, which does not exist`);
    if (admin) load.adminQueues++;
    else load.ioQueues++;
    return index;
  }

  release(admin: boolean, index: ReactorIndex): void {
    const load = this.#loads.get(index);
    if (!load) return;
    if (admin) load.adminQueues--;
    else load.ioQueues--;
  }

  /** What is where now. */
  view(reactors: readonly ReactorInfo[]): PlacementView[] {
    for (const info of reactors) this.#look(info);
    return [...this.#loads].map(([reactor, { ioQueues, adminQueues, busyShare }]) => ({
      reactor,
      ioQueues,
      adminQueues,
      busyShare,
    }));
  }

  #look({ index, busyNs, idleNs }: ReactorInfo): void {
    const load = this.#loads.get(index);
    if (!load) {
      this.#loads.set(index, { ioQueues: 0, adminQueues: 0, busyNs, idleNs, busyShare: 0 });
      return;
    }
    const busy = Number(busyNs - load.busyNs);
    const total = busy + Number(idleNs - load.idleNs);
    if (total > 0) load.busyShare = busy / total;
    load.busyNs = busyNs;
    load.idleNs = idleNs;
  }
}
