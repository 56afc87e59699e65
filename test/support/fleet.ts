/** Many hosts in a process of their own (fleet-worker.ts), seen from the test. */
import { fork } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';

/** Times are milliseconds since 1970; since the first host was lost. */
export interface FleetReport {
  /** Of CM REQs that were asked for. */
  readonly requestsAt: number[];
  readonly liveAt: number[];
  /** Of the first read of each host that is back. */
  readonly readAt: number[];
  counters: Readonly<Record<string, number>>;
  /** Why paths were lost and attempts failed, with N for every number, and how often. */
  readonly reasons: Record<string, number>;
}

export interface FleetOptions {
  readonly address: string;
  readonly nqn: string;
  readonly hosts: number;
  readonly reconnectDelayMs: number;
  readonly sources: number;
}

const WORKER = fileURLToPath(new URL('fleet-worker.ts', import.meta.url));

export class Fleet {
  readonly #child: ChildProcess;
  readonly #ended: Promise<unknown[]>;

  constructor({ address, nqn, hosts, reconnectDelayMs, sources }: FleetOptions) {
    const args = [address, nqn, ...[hosts, reconnectDelayMs, sources].map(String)];
    this.#child = fork(WORKER, args, { execArgv: ['--import', 'tsx'] });
    this.#ended = once(this.#child, 'exit');
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  /** Resolves when all hosts are live and have read, or when all are lost; rejects when the process ends. */
  async next(wanted: 'live' | 'lost'): Promise<FleetReport> {
    for (;;) {
      const ended = this.#ended.then(([code]) => {
        throw new Error(`the fleet ended with exit code ${String(code)}`);
      });
      const [message] = (await Promise.race([once(this.#child, 'message'), ended])) as [
        { readonly kind: string; readonly report: FleetReport },
      ];
      if (message.kind === wanted) return message.report;
    }
  }

  /** The hosts disconnect; resolves with the exit code. */
  async stop(): Promise<unknown> {
    this.#child.send('stop');
    const [code] = await this.#ended;
    return code;
  }
}

/** The most of these times that lie within any stretch of `ms`. */
export function mostWithin(times: readonly number[], ms: number): number {
  const sorted = [...times].sort((a, b) => a - b);
  let most = 0;
  let first = 0;
  sorted.forEach((time, index) => {
    while (time - (sorted[first] ?? time) >= ms) first += 1;
    most = Math.max(most, index - first + 1);
  });
  return most;
}
