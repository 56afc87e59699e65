/**
 * Where a target writes its log: any logger with bunyan's four calls. Without one it is silent.
 */
import type { QueueSummary } from './events.ts';

export interface Log {
  debug(fields: object, message: string): void;
  info(fields: object, message: string): void;
  warn(fields: object, message: string): void;
  error(fields: object, message: string): void;
}

const nothing = (): void => undefined;

export const silentLog: Log = { debug: nothing, info: nothing, warn: nothing, error: nothing };

/** Of an I/O queue in a record. Who the host is stands in the record of its controller. */
export function queueFields({
  subsystemNqn,
  cntlid,
  peer,
  qid,
  reactor,
  depth,
}: QueueSummary): object {
  return { subsystemNqn, cntlid, peer, qid, reactor, depth };
}
