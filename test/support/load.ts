/**
 * I/O that goes on while a test changes something: lanes that write and read back blocks of their own until they are
 * stopped or a command fails. Each lane's failure is kept, and a block that reads back wrong is one.
 */
import type { Namespace } from '../../initiator/index.ts';
import { eventually } from './counters.ts';

const BLOCKS = 8;
/** A machine with two cores, busy with other things. */
const PROGRESS_MS = 10_000;

export class Load {
  readonly failures: unknown[] = [];
  #commands = 0;
  #stopped = false;
  readonly #lanes: Promise<void>;

  constructor(namespace: Namespace, lanes = 16) {
    this.#lanes = Promise.all(
      Array.from({ length: lanes }, (_, i) => this.#lane(namespace, i * BLOCKS)),
    ).then(() => undefined);
  }

  get commands(): number {
    return this.#commands;
  }

  /** Resolves when that many more commands have succeeded; rejects when a command has failed. */
  async progress(more = 100): Promise<void> {
    const wanted = this.#commands + more;
    const done = (): boolean => this.#commands >= wanted || this.failures.length > 0;
    await eventually(done, PROGRESS_MS, () => `${more} commands`);
    if (this.failures.length > 0) throw this.failures[0];
  }

  /** Resolves when every lane has ended, by a failure or by `stop`. */
  ended(): Promise<void> {
    return this.#lanes;
  }

  /** Rejects when any command has failed. */
  async stop(): Promise<void> {
    this.#stopped = true;
    await this.#lanes;
    if (this.failures.length > 0) throw this.failures[0];
  }

  async #lane(namespace: Namespace, lba: number): Promise<void> {
    const data = new Uint8Array(BLOCKS * namespace.lbaSize);
    for (let round = 0; !this.#stopped; round++) {
      data.fill(round);
      try {
        await namespace.write(lba, data);
        const read = await namespace.read(lba, BLOCKS);
        if (!Buffer.from(data).equals(read)) throw new Error(`LBA ${lba}, round ${round}: wrong`);
      } catch (error) {
        this.failures.push(error);
        return;
      }
      this.#commands += 2;
    }
  }
}
