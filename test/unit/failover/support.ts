/** A namespace in memory on a clock turned by hand, which answers, stalls, fails and lies as it is told. */
import { ManualClock } from '../../../native/common/clock.ts';
import type { Clock } from '../../../native/common/clock.ts';
import type { IoTarget } from '../../../tools/failover/host.ts';
import { VerifiedLoad } from '../../../tools/failover/verified-load.ts';
import type { LoadOptions } from '../../../tools/failover/verified-load.ts';

export const LBA = 512;

export class FakeIo implements IoTarget {
  readonly lbaSize = LBA;
  readonly lbaCount = 4096n;
  readonly memory = new Uint8Array(LBA * 4096);
  latencyMs = 1;
  /** Nothing is answered before that time. */
  stalledUntil = 0;
  /** Of every request; what it throws is the request's end. */
  onRequest: ((operation: 'read' | 'write', lba: number) => void) | undefined;
  /** Of a write that was answered: false: it was not done. */
  keeps: (lba: number) => boolean = () => true;
  inFlight = 0;
  mostInFlight = 0;
  readonly #clock: Clock;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  async read(lba: number, count: number, options: { buffer: Uint8Array }): Promise<Uint8Array> {
    await this.#answer('read', lba);
    options.buffer.set(this.memory.subarray(lba * LBA, (lba + count) * LBA));
    return options.buffer;
  }

  async write(lba: number, data: Uint8Array): Promise<void> {
    const copy = data.slice();
    await this.#answer('write', lba);
    if (this.keeps(lba)) this.memory.set(copy, lba * LBA);
  }

  async #answer(operation: 'read' | 'write', lba: number): Promise<void> {
    this.inFlight++;
    this.mostInFlight = Math.max(this.mostInFlight, this.inFlight);
    const wait = Math.max(this.latencyMs, this.stalledUntil - this.#clock.now());
    await new Promise<void>((resolve) => {
      this.#clock.after(wait, resolve);
    });
    this.inFlight--;
    this.onRequest?.(operation, lba);
  }
}

export const LOAD: LoadOptions = {
  ...{ rate: 1000, readPercent: 50, requestBytes: 1024, areaBytes: 128 * 1024, depth: 16, seed: 3 },
};

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Time goes on by steps of 1 ms, and what it causes happens. */
export async function pass(clock: ManualClock, ms: number): Promise<void> {
  for (let step = 0; step < ms; step++) {
    clock.advance(1);
    await turn();
  }
}

/** The result of a promise that needs time to go on. */
export async function settled<T>(clock: ManualClock, promise: Promise<T>): Promise<T> {
  const state = { done: false };
  const watched = promise.finally(() => (state.done = true));
  watched.catch(() => undefined);
  for (let step = 0; step < 20_000 && !state.done; step++) await pass(clock, 1);
  return watched;
}

export interface Bench {
  readonly clock: ManualClock;
  readonly io: FakeIo;
  readonly load: VerifiedLoad;
}

/** Prepared, and not started. */
export async function prepared(
  options: Partial<LoadOptions> & { max?: boolean } = {},
): Promise<Bench> {
  const { max = false, ...given } = options;
  const { rate, ...rest } = { ...LOAD, ...given };
  const clock = new ManualClock();
  const io = new FakeIo(clock);
  const load = new VerifiedLoad(io, clock, max || rate === undefined ? rest : { ...rest, rate });
  await settled(clock, load.prepare());
  return { clock, io, load };
}
