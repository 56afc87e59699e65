/**
 * Errors a user of the library meets. Each has a `code` that stays the same between releases, the name of the object it
 * concerns, and the error that caused it. NVMe statuses become `NvmeStatusError`; inside the control plane a status stays a
 * plain value.
 */
import { decodeStatus } from '../wire/status.ts';
import type { StatusName } from '../wire/status.ts';

export interface ErrorContext {
  /** What it happened to: a path, an address, an NQN. */
  readonly object?: string | undefined;
  readonly cause?: unknown;
}

/** Base of every error this package throws on purpose. */
export class NvmeofError extends Error {
  override readonly name: string = 'NvmeofError';
  /** Stable, in capitals: 'CONFIG_INVALID', 'ADDRESS_INVALID', … */
  readonly code: string;
  readonly object: string | undefined;

  constructor(code: string, message: string, context: ErrorContext = {}) {
    super(message, context.cause === undefined ? undefined : { cause: context.cause });
    this.code = code;
    this.object = context.object;
  }
}

/** A command that the controller answered with a status other than success. */
export class NvmeStatusError extends NvmeofError {
  override readonly name = 'NvmeStatusError';
  readonly sct: number;
  readonly sc: number;
  /** Do not retry: the same command would fail again. */
  readonly dnr: boolean;
  readonly status: StatusName | undefined;
  /** Dwords 0 and 1 of the completion. */
  readonly result: bigint;

  /** `field` is the status without phase bit, as in a CQE shifted right by one. */
  constructor(field: number, command: string, context: ErrorContext & { result?: bigint } = {}) {
    const status = decodeStatus(field);
    const hex = (value: number): string => value.toString(16).padStart(2, '0');
    super(
      statusCode(status.name),
      `${command}: ${status.text} (${hex(status.sct)}/${hex(status.sc)}${status.dnr ? ', do not retry' : ''})`,
      context,
    );
    this.sct = status.sct;
    this.sc = status.sc;
    this.dnr = status.dnr;
    this.status = status.name;
    this.result = context.result ?? 0n;
  }
}

/** 'invalidField' → 'NVME_INVALID_FIELD'. */
function statusCode(name: StatusName | undefined): string {
  if (!name) return 'NVME_STATUS_UNKNOWN';
  return 'NVME_' + name.replace(/[A-Z]/g, (letter) => '_' + letter).toUpperCase();
}

/** What a thrown value says, for log lines and wrapping. */
export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** A thrown value as an Error; most are. */
export function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(messageOf(error));
}
