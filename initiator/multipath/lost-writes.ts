/**
 * What became of the controllers that were lost with writes on their way: for each, the fence runs until those writes may go
 * again. Controllers that come meanwhile are asked, too. Runs on the JavaScript thread.
 */
import { unlessAborted } from '../../native/common/abort.ts';
import { within } from '../../native/common/clock.ts';
import type { Clock } from '../../native/common/clock.ts';
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
  /** It takes longer: once for each lost controller. */
  readonly onHeld: (path: Path, cntlid: number, reason: string) => void;
  readonly warn: (message: string) => void;
}

/** How long the end of a controller may take before somebody is told that writes wait for it. */
export const TELL_MS = 2000;
/** Who could not help is asked again: a target that was stopped may have been ended since, or go on. */
export const ASK_AGAIN_MS = 5000;

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
    const { clock, writes, peers, onHeld, warn } = this.#options;
    let reason = 'no other controller has said yet that it has ended';
    const late = clock.after(TELL_MS, () => {
      onHeld(path, impacted.cntlid, reason);
    });
    while (!this.#closed) {
      const running = new AbortController();
      this.#running.add(running);
      try {
        const outcome = await fenceController(impacted, peers(path).map(peerOf), {
          clock,
          writes,
          signal: running.signal,
          onRefused: (peer, why) => {
            reason = `${peer} could not end it: ${why}`;
            warn(
              `path ${path.endpoint} was lost, and ${peer} could not end its controller: ${why}`,
            );
          },
        });
        if (this.#settles(outcome)) {
          await before;
          this.#release(path, incarnation, outcome);
          break;
        }
        if (outcome.guarantee === 'none') reason = outcome.reason;
        await pause(clock, ASK_AGAIN_MS, running.signal);
      } catch (error) {
        if (!(error instanceof Again)) break;
      } finally {
        this.#running.delete(running);
      }
    }
    late.cancel();
  }

  #release(path: Path, incarnation: number, outcome: FenceOutcome): void {
    if (!this.#closed) this.#options.onOver(path, incarnation, outcome);
  }

  /** Where the time says nothing, a peer that cannot end the controller now may do so later, and so may one that comes. */
  #settles(outcome: FenceOutcome): boolean {
    return outcome.guarantee !== 'none' || this.#options.writes === 'never';
  }
}

/** Rejects when aborted. */
async function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  const never = new Promise<never>(() => undefined);
  await within(clock, ms, unlessAborted(never, signal));
}
