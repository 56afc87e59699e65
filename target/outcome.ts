/**
 * What a command handler returns: a reply, a failure that names status and field, or the promise to answer later. Handlers never
 * build a completion; execute.ts and the queue do.
 */
import { DNR } from '../native/wire/status.ts';
import { PARAMETER_NONE } from '../native/wire/logs.ts';

export interface Reply {
  readonly kind: 'reply';
  /** Dwords 0 and 1 of the completion. */
  readonly result: bigint;
  readonly data: Uint8Array | undefined;
}

export interface Failure {
  readonly kind: 'failure';
  /** SC | SCT << 8 | DNR, as the door takes it. */
  readonly status: number;
  /** Offset of the field in the SQE, or PARAMETER_NONE. */
  readonly parameter: number;
  /** For the log: what is wrong with the field. */
  readonly reason: string;
  readonly result: bigint;
}

/** Answered later by whoever keeps the tag (Asynchronous Event Request). */
export interface Held {
  readonly kind: 'held';
}

export type Outcome = Reply | Failure | Held;

export const HELD: Held = { kind: 'held' };

export function reply(result: bigint | number = 0n, data?: Uint8Array): Reply {
  return { kind: 'reply', result: BigInt(result), data };
}

export interface FailOptions {
  readonly result?: bigint;
  /** The same command may succeed later. */
  readonly retry?: boolean;
}

/** `field` is the byte offset in the SQE, `undefined` when no field is to blame. */
export function fail(
  status: number,
  field: number | undefined,
  reason: string,
  options: FailOptions = {},
): Failure {
  return {
    kind: 'failure',
    status: options.retry ? status : status | DNR,
    parameter: field ?? PARAMETER_NONE,
    reason,
    result: options.result ?? 0n,
  };
}

export function isFailure(value: object): value is Failure {
  return 'kind' in value && value.kind === 'failure';
}
