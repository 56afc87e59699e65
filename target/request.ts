/**
 * One command on its way: raw bytes, and what the row of its table makes of it.
 */
import type { Tag } from '../native/index.ts';
import type { Sqe } from '../native/wire/sqe.ts';
import type { DataDirectionName } from '../native/wire/opcodes.ts';
import type { Controller } from './controller.ts';
import type { Failure, Outcome } from './outcome.ts';
import type { TargetQueue } from './queue.ts';

export interface Request {
  readonly queue: TargetQueue;
  readonly controller: Controller;
  readonly tag: Tag;
  readonly sqe: Uint8Array;
  readonly header: Sqe;
  /** What the host sent along. */
  readonly data: Uint8Array;
}

/** A command that has been parsed and checked, but has done nothing yet. */
export interface Prepared {
  /** Bytes of data, either way; the host's SGL must name exactly these. */
  readonly length: number;
  run(): Outcome | Promise<Outcome>;
  /** Runs when the answer is on its way. */
  after?(): void;
}

/** One row of the command tables. */
export interface CommandRow {
  /** Opcode, or Fabrics command type. */
  readonly code: number;
  readonly name: string;
  readonly direction: DataDirectionName;
  /** Whether NSID must be 0 ('unused') or is checked by `prepare`. */
  readonly nsid: 'unused' | 'own';
  readonly queues: 'admin' | 'io' | 'both';
  /** Allowed on a discovery controller. */
  readonly discovery: boolean;
  /** Allowed while CC.EN is 0. */
  readonly whileDisabled: boolean;
  /** Bits of the commands-supported log besides "supported". */
  readonly effects: number;
  prepare(request: Request): Prepared | Failure;
}
