/**
 * Events of a running target, for programs that embed it and for logs.
 */
import type { Endpoint } from '../native/common/address.ts';
import type { AnaView } from './ana-access.ts';

export interface ControllerSummary {
  readonly subsystemNqn: string;
  readonly cntlid: number;
  readonly hostNqn: string;
  readonly hostId: string;
  readonly peer: string;
}

export interface QueueSummary extends ControllerSummary {
  readonly qid: number;
  readonly reactor: number;
  readonly depth: number;
}

export interface TargetEvents {
  listening: [endpoint: Endpoint];
  controllerCreated: [controller: ControllerSummary];
  /** `reason` says who ended it. */
  controllerDeleted: [controller: ControllerSummary, reason: string];
  queueConnected: [queue: QueueSummary];
  queueClosed: [queue: QueueSummary, reason: string];
  /** A connection or a Connect command that was refused, with the reason. */
  refused: [peer: string, reason: string];
  /** A namespace was added, removed, enabled, disabled or resized. */
  namespaceChanged: [subsystemNqn: string, nsid: number];
  /** An ANA group has another state at a port. */
  anaStateChanged: [subsystemNqn: string, view: AnaView];
  /** A namespace is in another ANA group. */
  anaGroupChanged: [subsystemNqn: string, nsid: number, group: number];
  closed: [];
}
