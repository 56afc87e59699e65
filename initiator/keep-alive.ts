/**
 * Tells the controller every half keep alive timeout that its host lives (NVMe Base 2.1 section 3.9), and finds out by
 * the same command that the controller does. A timeout of 0 means no Keep Alive on either side.
 */
import type { Clock, Timer } from '../native/common/clock.ts';

export interface KeepAliveOptions {
  readonly clock: Clock;
  readonly keepAliveMs: number;
  /** Sends one Keep Alive; rejects when it fails. */
  readonly send: (timeoutMs: number) => Promise<void>;
  readonly onFailed: (error: unknown) => void;
}

export class KeepAlive {
  readonly #options: KeepAliveOptions;
  #timer: Timer | undefined;
  #stopped = false;

  constructor(options: KeepAliveOptions) {
    this.#options = options;
    if (options.keepAliveMs > 0) this.#arm(this.#interval());
  }

  stop(): void {
    this.#stopped = true;
    this.#timer?.cancel();
  }

  #interval(): number {
    return this.#options.keepAliveMs / 2;
  }

  #arm(ms: number): void {
    this.#timer = this.#options.clock.after(ms, () => {
      void this.#beat();
    });
  }

  async #beat(): Promise<void> {
    const { clock, keepAliveMs } = this.#options;
    const sentAt = clock.now();
    try {
      await this.#options.send(keepAliveMs);
    } catch (error) {
      if (!this.#stopped) this.#options.onFailed(error);
      return;
    }
    if (!this.#stopped) this.#arm(Math.max(0, this.#interval() - (clock.now() - sentAt)));
  }
}
