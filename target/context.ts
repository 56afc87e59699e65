/**
 * What the parts of one running target share. Built once by Target; runs on the JavaScript thread.
 */
import type { Clock } from '../native/common/clock.ts';
import type { ReactorIndex } from '../native/index.ts';
import type { Runtime } from '../native/runtime.ts';
import type { PortConfig } from './config.ts';
import type { Discovery } from './discovery.ts';
import type { Drain } from './drain.ts';
import type { TargetEvents } from './events.ts';
import type { Log } from './log.ts';
import type { Subsystem } from './subsystem.ts';

/** Largest transfer of one command; MDTS says the same. */
export const MAX_TRANSFER_BYTES = 1 << 20;

export interface Context {
  readonly runtime: Runtime;
  readonly clock: Clock;
  readonly log: Log;
  readonly subsystems: ReadonlyMap<string, Subsystem>;
  readonly discovery: Discovery;
  readonly drain: Drain;
  emit<E extends keyof TargetEvents>(event: E, ...args: TargetEvents[E]): void;
}

/** Where a host reached the target. */
export interface Arrival {
  readonly port: PortConfig;
  /** Index of the port, PORTID in the discovery log. */
  readonly portId: number;
  /** Its 'ADDRESS:PORT', as ANA states name it. */
  readonly endpoint: string;
  /** Address of ours that the host used, numeric. */
  readonly local: string;
  readonly peer: string;
  readonly reactor: ReactorIndex;
}
