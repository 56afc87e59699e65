/**
 * When every request ended, how long it took and how it ended: arrays of numbers that grow in steps, for millions of
 * requests. Times are milliseconds since the run began. Latency counts from when a request was due, not from when it could
 * be sent, so that requests that a stall held back show it.
 */
export type Operation = 'read' | 'write';

const CHUNK = 1 << 16;
const WRITE = 1;
const FAILED = 2;

interface Chunk {
  readonly ends: Float64Array;
  readonly latencies: Float32Array;
  readonly flags: Uint8Array;
}

export interface Completion {
  readonly endMs: number;
  readonly latencyMs: number;
  readonly operation: Operation;
  readonly failed: boolean;
}

export class CompletionLog {
  readonly #chunks: Chunk[] = [];
  readonly #limit: number;
  #length = 0;

  /** `limit`: requests beyond it are not kept. */
  constructor(limit = 20_000_000) {
    this.#limit = limit;
  }

  get length(): number {
    return this.#length;
  }

  get full(): boolean {
    return this.#length >= this.#limit;
  }

  add(endMs: number, latencyMs: number, operation: Operation, failed = false): void {
    if (this.full) return;
    const at = this.#length % CHUNK;
    if (at === 0) {
      this.#chunks.push({
        ends: new Float64Array(CHUNK),
        latencies: new Float32Array(CHUNK),
        flags: new Uint8Array(CHUNK),
      });
    }
    const chunk = this.#chunks[this.#chunks.length - 1];
    if (!chunk) return;
    chunk.ends[at] = endMs;
    chunk.latencies[at] = latencyMs;
    chunk.flags[at] = (operation === 'write' ? WRITE : 0) | (failed ? FAILED : 0);
    this.#length++;
  }

  /** In the order in which they ended. */
  *[Symbol.iterator](): Generator<Completion> {
    let left = this.#length;
    for (const { ends, latencies, flags } of this.#chunks) {
      for (let at = 0; at < CHUNK && left > 0; at++, left--) {
        const flag = flags[at] ?? 0;
        yield {
          endMs: ends[at] ?? 0,
          latencyMs: latencies[at] ?? 0,
          operation: (flag & WRITE) === 0 ? 'read' : 'write',
          failed: (flag & FAILED) !== 0,
        };
      }
    }
  }
}
