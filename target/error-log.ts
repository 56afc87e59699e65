/**
 * The error information log of one controller (NVMe Base 2.1 section 5.1.12.1.2): the newest rejections, each with the queue, the
 * command, the status and the field that was wrong. Filled by the command gate and by native's `ioError` events.
 */
import { ErrorLogEntry } from '../native/wire/logs.ts';
import { TransportType } from '../native/wire/logs.ts';
import { BlockCommand, Sqe } from '../native/wire/sqe.ts';
import { IoOpcode } from '../native/wire/opcodes.ts';

export const ERROR_LOG_ENTRIES = 64;

const BLOCK_OPCODES: ReadonlySet<number> = new Set([
  IoOpcode.write,
  IoOpcode.read,
  IoOpcode.compare,
  IoOpcode.writeZeroes,
  IoOpcode.verify,
]);

export interface Rejection {
  readonly sqid: number;
  readonly sqe: Uint8Array;
  /** Status field without phase bit. */
  readonly status: number;
  readonly parameter: number;
}

export class ErrorLog {
  #count = 0n;
  readonly #entries: Uint8Array[] = [];

  /** Errors since the controller was created. */
  get count(): bigint {
    return this.#count;
  }

  add({ sqid, sqe, status, parameter }: Rejection): void {
    const { opcode, cid, nsid } = Sqe.decode(sqe);
    const lba = sqid !== 0 && BLOCK_OPCODES.has(opcode) ? BlockCommand.decode(sqe).slba : 0n;
    this.#count += 1n;
    this.#entries.unshift(
      ErrorLogEntry.encode({
        count: this.#count,
        sqid,
        cid,
        status: status & 0x7fff,
        ploc: parameter,
        lba,
        nsid,
        trtype: TransportType.rdma,
        opcode,
      }),
    );
    if (this.#entries.length > ERROR_LOG_ENTRIES) this.#entries.pop();
  }

  /** Newest first; unused entries are zero. */
  page(): Uint8Array {
    const page = new Uint8Array(ERROR_LOG_ENTRIES * ErrorLogEntry.size);
    this.#entries.forEach((entry, index) => {
      page.set(entry, index * ErrorLogEntry.size);
    });
    return page;
  }
}
