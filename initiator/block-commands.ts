/**
 * Submission queue entries of commands on a range of blocks (NVM Command Set 1.1 section 3.2.1), each kind written once: from one
 * command to the next only the range changes.
 */
import { viewOf } from '../native/wire/layout.ts';
import { BlockCommand, PSDT_SGL } from '../native/wire/sqe.ts';

/** Numbers up to 2^53, which cost no allocation; bigints reach all 64 bits. */
export type Lba = number | bigint;

export type BlockFlags = Partial<Pick<BlockCommand, 'fua' | 'deac'>>;

export class BlockCommands {
  /** In the specification's words, for errors: "Read". */
  readonly name: string;
  readonly #sqe: Uint8Array;
  readonly #view: DataView;

  constructor(name: string, opcode: number, nsid: number, flags: BlockFlags = {}) {
    this.name = name;
    this.#sqe = BlockCommand.encode({ opcode, psdt: PSDT_SGL, nsid, ...flags });
    this.#view = viewOf(this.#sqe);
  }

  /** `blocks` from 1 to 65,536. The entry is valid until the next call. */
  on(lba: Lba, blocks: number): Uint8Array {
    const { slba, nlb } = BlockCommand.fields;
    if (typeof lba === 'number') slba.setNumber(this.#view, 0, lba);
    else slba.set(this.#view, 0, lba);
    nlb.set(this.#view, 0, blocks - 1);
    return this.#sqe;
  }
}
