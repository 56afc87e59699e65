/** What a fault can be made to happen to: a target of the test's own, or one that existed before it. */
import type { Counters } from '../../native/common/counters.ts';
import type { FaultRule } from '../../target/index.ts';
import type { Fault, FaultKind, Scenario } from './scenario.ts';

/** Takes a fault back. */
export type End = () => void | Promise<void>;

export interface Where {
  readonly address: string;
  readonly port: number;
  readonly nqn: string;
}

/** Of a process that the test started. */
export interface TargetLife {
  /** Another one after each start. */
  readonly pid: number;
  readonly running: boolean;
  /** Every thread, at the moment. */
  readonly standsStill: boolean;
  /** By force. */
  kill(): Promise<void>;
  /** As it was. */
  startAgain(): Promise<void>;
  /** Every thread stands still. */
  pause(): Promise<void>;
  resume(): void;
}

/** What is absent cannot be done to it; `refusal` says why. */
export interface FaultyTarget {
  /** ADDRESS:PORT, as the host names its path. */
  readonly endpoint: string;
  /** For other hosts that come and go. */
  readonly where: Where & { readonly faultInjection?: boolean };
  /** Why a fault of that kind cannot be made to happen there; undefined: it can. */
  refusal(kind: FaultKind): string | undefined;
  /** Packets of that target meet the rule, in directions as the target sees them. */
  packetFault(rule: FaultRule): Promise<End>;
  /** `soft.fault.*` of whose packets meet the rules. */
  faultCounters(): Promise<Counters>;
  readonly life?: TargetLife;
  /** Sends its hosts away in good order; the end takes them again. */
  terminate?(): Promise<End>;
  resize?(nsid: number, bytes: bigint): Promise<void>;
  /** Of the namespace's group; the end brings the state of before back. */
  setAnaState?(nsid: number, state: string): Promise<End>;
  /** Reads and writes that it completed so far. */
  ioCommands?(): Promise<number>;
}

function refusalOf(fault: Fault, targets: readonly FaultyTarget[]): string | undefined {
  const target = targets[fault.target];
  if (!target) return `there is no target ${fault.target}, the last one is ${targets.length - 1}`;
  // All that share the namespace must grow.
  const concerned = fault.kind === 'resize' ? targets : [target];
  for (const each of concerned) {
    const reason = each.refusal(fault.kind);
    if (reason !== undefined) return `${fault.kind} at ${each.endpoint}: ${reason}`;
  }
  return undefined;
}

/** Why a scenario cannot be run on these targets; undefined: it can. */
export function scenarioRefusal(
  { faults }: Scenario,
  targets: readonly FaultyTarget[],
): string | undefined {
  for (const fault of faults) {
    const reason = refusalOf(fault, targets);
    if (reason !== undefined) return reason;
  }
  return undefined;
}
