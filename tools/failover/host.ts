/** What a failover test needs of an initiator: somewhere to read and write, and what it knows of its paths. */
import type { EventEmitter } from 'node:events';

/** A namespace, over whatever paths. `Namespace` of the initiator is one. */
export interface IoTarget {
  /** Bytes of a block. */
  readonly lbaSize: number;
  readonly lbaCount: bigint;
  read(lba: number, count: number, options: { readonly buffer: Uint8Array }): Promise<Uint8Array>;
  /** Resolves when it was acknowledged, on whichever path. */
  write(lba: number, data: Uint8Array): Promise<void>;
}

/** `live`: carries I/O, or could. */
export type PathState = 'live' | 'standby' | 'connecting' | 'lost';

export interface PathView {
  /** ADDRESS:PORT of the target. */
  readonly path: string;
  readonly state: PathState;
}

export interface PathChange extends PathView {
  readonly reason: string;
}

export interface FailoverHostEvents {
  pathChanged: [change: PathChange];
}

export interface FailoverHost extends EventEmitter<FailoverHostEvents> {
  readonly io: IoTarget;
  readonly paths: readonly PathView[];
  /** Requests that were sent again on another path so far; absent: it does not do that. */
  readonly retries?: number;
  close(): Promise<void>;
}
