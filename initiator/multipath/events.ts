/** What a subsystem over several paths shows of itself, and what it tells as it happens. */
import type { AnaGroup } from './ana-log.ts';
import type { FenceOutcome } from './fence.ts';
import type { Path, PathState } from './path.ts';

/** A path as it is shown to people and programs. */
export interface PathView {
  readonly endpoint: string;
  readonly state: PathState;
  /** Why it is not live; empty when it is. */
  readonly reason: string;
  readonly preferred: boolean;
  readonly cntlid: number | undefined;
  readonly queues: number;
  /** I/O queues that were asked for. */
  readonly queuesAsked: number;
  readonly anaGroups: readonly AnaGroup[];
  /** To connect it since it was last live. */
  readonly attempts: number;
  /** Until the next attempt; undefined: one runs, or none is needed. */
  readonly nextAttemptMs: number | undefined;
}

export function viewOf(path: Path): PathView {
  const { endpoint, state, reason, preferred, controller, anaGroups } = path;
  return {
    ...{ endpoint, state, reason, preferred, anaGroups },
    cntlid: controller?.cntlid,
    queues: controller?.queues.length ?? 0,
    queuesAsked: controller?.queuesAsked ?? 0,
    attempts: path.attempts,
    nextAttemptMs: path.nextAttemptMs,
  };
}

export interface PathChange {
  readonly endpoint: string;
  readonly from: PathState;
  readonly to: PathState;
  readonly reason: string;
}

/** Writes that wait until a lost controller can do nothing more. */
export interface HeldWrites {
  readonly cntlid: number;
  /** How many wait in this process, for this controller or others. */
  readonly writes: number;
  /** Why its end is not known. */
  readonly reason: string;
}

export interface MultipathEvents {
  pathState: [change: PathChange];
  /** What a path says of its ANA groups is other than before. */
  anaChange: [endpoint: string, groups: readonly AnaGroup[]];
  namespacesChanged: [
    change: {
      readonly added: readonly number[];
      readonly removed: readonly number[];
      readonly changed: readonly number[];
    },
  ];
  /** I/O that finds no path fails from now on, or waits again. */
  failing: [nsid: number, failing: boolean];
  /** The end of a lost controller takes longer, and what it may still write waits. `writesReleased` follows. */
  writesHeld: [endpoint: string, held: HeldWrites];
  /** Writes that a lost controller had may go again, or will not: `outcome` says by what guarantee. */
  writesReleased: [endpoint: string, outcome: FenceOutcome];
  warning: [error: Error];
}
