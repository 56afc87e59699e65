/**
 * What became of the controllers that were lost with writes on their way: for each, the fence runs until those writes may go
 * again. Controllers that come meanwhile are asked, too. Runs on the JavaScript thread.
 */
import type { Clock } from '../../native/common/clock.ts';
import { asError } from '../../native/common/errors.ts';
import type { Controller } from '../controller.ts';
import { impactedBy, peerOf } from './fence-peer.ts';
import { fenceController } from './fence.ts';
import type { FenceOutcome, ImpactedController, WritesPolicy } from './fence.ts';
import type { Path } from './path.ts';

export interface LostWritesOptions {
  readonly clock: Clock;
  readonly writes: WritesPolicy;
  /** Controllers that can be asked now, those of other paths first. */
  readonly peers: (lost: Path) => readonly Controller[];
  readonly onOver: (path: Path, incarnation: number, outcome: FenceOutcome) => void;
  readonly onRefused: (path: Path, peer: string, reason: string) => void;
}

/** A peer has come: asked anew. */
class Again extends Error {}

export class LostWrites {
  readonly #options: LostWritesOptions;
  readonly #running = new Set<AbortController>();
  /** The newest run of each path's index: native releases what is held of an incarnation with all that came before it. */
  readonly #newest = new Map<number, Promise<void>>();
  #closed = false;

  constructor(options: LostWritesOptions) {
    this.#options = options;
  }

  begin(path: Path, controller: Controller): void {
    const impacted = impactedBy(controller, this.#options.clock.now());
    const before = this.#newest.get(path.index) ?? Promise.resolve();
    this.#newest.set(path.index, this.#run(path, path.incarnation, impacted, before));
  }

  /** A path is live: its controller can be asked. */
  peerCame(): void {
    for (const running of this.#running) running.abort(new Again());
  }

  close(): void {
    this.#closed = true;
    for (const running of this.#running) running.abort(new Error('closed'));
  }

  /** `before`: resolves when earlier incarnations are over. */
  async #run(
    path: Path,
    incarnation: number,
    impacted: ImpactedController,
    before: Promise<void>,
  ): Promise<void> {
    const { clock, writes, peers, onRefused } = this.#options;
    while (!this.#closed) {
      const running = new AbortController();
      this.#running.add(running);
      try {
        const outcome = await fenceController(impacted, peers(path).map(peerOf), {
          clock,
          writes,
          signal: running.signal,
          onRefused: (peer, reason) => {
            onRefused(path, peer, reason);
          },
        });
        if (this.#settles(outcome)) {
          await before;
          this.#release(path, incarnation, outcome);
          return;
        }
        await untilAborted(running.signal);
      } catch (error) {
        if (!(error instanceof Again)) return;
      } finally {
        this.#running.delete(running);
      }
    }
  }

  #release(path: Path, incarnation: number, outcome: FenceOutcome): void {
    if (!this.#closed) this.#options.onOver(path, incarnation, outcome);
  }

  /** Without keep alive, and without a peer now, a peer that comes later may still end the controller. */
  #settles(outcome: FenceOutcome): boolean {
    return outcome.guarantee !== 'none' || this.#options.writes === 'never';
  }
}

function untilAborted(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const fail = (): void => {
      reject(asError(signal.reason));
    };
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });
}
