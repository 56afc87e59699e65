/**
 * When a write that was lost with its controller may be sent again on another path. Its first copy may still be on the way to the
 * medium, and would then undo whatever is written there meanwhile. So: end the lost controller through another one (Cross-Controller
 * Reset, NVMe Base 2.3 section 9.6), or else wait until the controller must have ended by itself. docs/stale-writes.md says what each
 * way guarantees. Only writes that were sent need this; reads, and what never left this host, can go at once.
 */
import { unlessAborted } from '../../native/common/abort.ts';
import type { Clock, Timer } from '../../native/common/clock.ts';
import { NvmeStatusError, messageOf } from '../../native/common/errors.ts';
import { CrossControllerResetLog, CrossControllerResetStatus } from '../../native/wire/logs.ts';

/**
 *   fenced     nothing is sent again before the lost controller can do nothing any more. The default
 *   proven     the same, but only another controller's word counts, however long that takes: never the time alone
 *   immediate  at once, as Linux does before Cross-Controller Reset: a slow target may overwrite newer data with older
 *   never      not at all: whoever wrote gets the error, and knows that the write may still happen
 */
export type WritesPolicy = 'fenced' | 'proven' | 'immediate' | 'never';

/** A controller that was lost, in the life that was lost. */
export interface ImpactedController {
  readonly cntlid: number;
  /** 0 for a controller that does not tell. */
  readonly ciu: number;
  readonly cirn: bigint;
  /** As agreed at Connect, ms; 0: off. */
  readonly keepAliveMs: number;
  /** KAS, ms. */
  readonly keepAliveGranularityMs: number;
  /** CTRATT.TBKAS: any command counts as a sign of life. */
  readonly trafficBasedKeepAlive: boolean;
  /** CQT, ms; 0: the controller promises nothing. */
  readonly cqtMs: number;
  /** On the clock: from then on nothing of ours can reach it, because its queues are closed. */
  readonly lastSentMs: number;
}

export type ControllerLife = Pick<ImpactedController, 'cntlid' | 'ciu' | 'cirn'>;

/** A live controller of the same subsystem. Every function rejects when it is lost. */
export interface FencePeer {
  /** For people. */
  readonly name: string;
  /** CCRL. */
  readonly resetLimit: number;
  /** Sends Cross-Controller Reset; true: over already (Immediate Reset Successful). */
  reset(life: ControllerLife): Promise<boolean>;
  /** The whole log page 1Eh. */
  readLog(removeCompleted: boolean): Promise<Uint8Array>;
  /** Resolves with the next event that a reset is over; forgotten when `signal` is aborted. */
  resetCompleted(signal: AbortSignal): Promise<void>;
}

/** What lets a write go again, or not. */
export type FenceOutcome =
  | { readonly guarantee: 'cross-controller-reset'; readonly peer: string }
  /** `promised`: the controller has said how long it takes (CQT); else the time is only likely to do. */
  | { readonly guarantee: 'quiesce-time'; readonly waitedMs: number; readonly promised: boolean }
  | { readonly guarantee: 'immediate' }
  /** Must not be sent again: by policy, or because no way was left. */
  | { readonly guarantee: 'none'; readonly reason: string };

export interface FenceOptions {
  readonly clock: Clock;
  readonly writes?: WritesPolicy;
  /** Gives up; the promise rejects with its reason. */
  readonly signal?: AbortSignal;
  /** Each peer that did not help, and why. */
  readonly onRefused?: (peer: string, reason: string) => void;
}

/** How often the log is read although no event came: events can be lost with their controller's configuration. */
export const LOG_POLL_MS = 500;
/** What a peer gets at least, however short the controller's times are. */
export const PEER_MS_MIN = 1000;

/**
 * How long after `lastSentMs` the controller may still work: a keep alive timer that nobody restarts, counted from a moment that the
 * controller may learn of late, then CQT. Twice the timeout, and three times where traffic counts, because such a controller looks
 * only once per timeout whether there was some; Linux waits as long.
 */
export function quiesceMs(impacted: ImpactedController): number | undefined {
  const { keepAliveMs, keepAliveGranularityMs, trafficBasedKeepAlive, cqtMs } = impacted;
  if (keepAliveMs === 0) return undefined;
  const granule = Math.max(1, keepAliveGranularityMs);
  const timeout = Math.ceil(keepAliveMs / granule) * granule;
  return timeout * (trafficBasedKeepAlive ? 3 : 2) + cqtMs;
}

type Wakeup = 'event' | 'poll' | 'late';

/** One fence: the time runs while peers are asked. */
class Fence {
  readonly #impacted: ImpactedController;
  readonly #options: FenceOptions;
  readonly #over = new AbortController();
  readonly #timers = new Set<Timer>();

  constructor(impacted: ImpactedController, options: FenceOptions) {
    this.#impacted = impacted;
    this.#options = options;
  }

  async run(peers: readonly FencePeer[]): Promise<FenceOutcome> {
    const { signal } = this.#options;
    signal?.throwIfAborted();
    const asked = this.#ask(peers);
    const waited = this.#wait();
    try {
      const first = await unlessAborted(Promise.race([asked, waited ?? asked]), signal);
      if (first) return first;
      if (waited) return await unlessAborted(waited, signal);
      return { guarantee: 'none', reason: this.#withoutHelp };
    } finally {
      this.#over.abort();
      for (const timer of this.#timers) timer.cancel();
    }
  }

  #after(ms: number, callback: () => void): void {
    const timer = this.#options.clock.after(ms, () => {
      this.#timers.delete(timer);
      callback();
    });
    this.#timers.add(timer);
  }

  get #withoutHelp(): string {
    if (this.#impacted.ciu === 0) return 'it tells nothing by which another one could end it';
    if (this.#impacted.keepAliveMs > 0) return 'no other controller could end it';
    return 'no other controller could end it, and without keep alive it does not end by itself';
  }

  /** Undefined where the time says nothing. */
  #wait(): Promise<FenceOutcome> | undefined {
    if (this.#options.writes === 'proven') return undefined;
    const { lastSentMs, cqtMs } = this.#impacted;
    const waitedMs = quiesceMs(this.#impacted);
    if (waitedMs === undefined) return undefined;
    const left = Math.max(0, lastSentMs + waitedMs - this.#options.clock.now());
    return new Promise((resolve) => {
      this.#after(left, () => {
        resolve({ guarantee: 'quiesce-time', waitedMs, promised: cqtMs > 0 });
      });
    });
  }

  /** Undefined when no peer could help. */
  async #ask(peers: readonly FencePeer[]): Promise<FenceOutcome | undefined> {
    if (this.#impacted.ciu === 0) return undefined;
    for (const peer of peers) {
      if (peer.resetLimit === 0) continue;
      const problem = await this.#askOne(peer).catch(messageOf);
      if (this.#over.signal.aborted) return undefined;
      if (problem === undefined) return { guarantee: 'cross-controller-reset', peer: peer.name };
      this.#options.onRefused?.(peer.name, problem);
    }
    return undefined;
  }

  /** Undefined: the impacted controller has ended. */
  async #askOne(peer: FencePeer): Promise<string | undefined> {
    if (await this.#begin(peer)) return undefined;
    const { keepAliveMs, cqtMs } = this.#impacted;
    const deadline = this.#options.clock.now() + Math.max(keepAliveMs, cqtMs, PEER_MS_MIN);
    for (;;) {
      const wakeup = await this.#wakeup(peer, deadline);
      const status = this.#statusIn(await peer.readLog(false));
      if (status === CrossControllerResetStatus.success) return undefined;
      if (status === CrossControllerResetStatus.failure) return 'it could not end the controller';
      if (status === undefined) return 'its log does not know of the reset';
      if (wakeup === 'late') return 'it has not ended the controller in time';
    }
  }

  /** True: over already. */
  async #begin(peer: FencePeer): Promise<boolean> {
    try {
      return await peer.reset(this.#impacted);
    } catch (error) {
      if (!(error instanceof NvmeStatusError)) throw error;
      // Asked before, perhaps by a fence that was given up.
      if (error.status === 'crossControllerResetInProgress') return false;
      if (error.status !== 'crossControllerResetLogFull') throw error;
      await peer.readLog(true);
      return peer.reset(this.#impacted);
    }
  }

  async #wakeup(peer: FencePeer, deadline: number): Promise<Wakeup> {
    const waiting = new AbortController();
    const left = deadline - this.#options.clock.now();
    const time = new Promise<Wakeup>((resolve) => {
      this.#after(Math.min(LOG_POLL_MS, left), () => {
        resolve(left <= LOG_POLL_MS ? 'late' : 'poll');
      });
    });
    try {
      const signal = AbortSignal.any([waiting.signal, this.#over.signal]);
      return await Promise.race([peer.resetCompleted(signal).then((): Wakeup => 'event'), time]);
    } finally {
      waiting.abort();
    }
  }

  /** Of the newest entry for this life. A page says how many entries it has, but cannot have more than fit. */
  #statusIn(page: Uint8Array): number | undefined {
    if (page.length < CrossControllerResetLog.size) return undefined;
    const { ne, entries } = CrossControllerResetLog.decode(page);
    const { cntlid, ciu } = this.#impacted;
    return entries.slice(0, ne).findLast((entry) => entry.icid === cntlid && entry.ciu === ciu)
      ?.ccrs;
  }
}

/**
 * Resolves when writes that were lost with `impacted` may be sent again, or with 'none' when they must not, or not yet. Peers are asked in
 * turn, while the time runs: whatever comes first decides. Rejects only when `signal` is aborted.
 */
export async function fenceController(
  impacted: ImpactedController,
  peers: readonly FencePeer[],
  options: FenceOptions,
): Promise<FenceOutcome> {
  switch (options.writes ?? 'fenced') {
    case 'immediate':
      return { guarantee: 'immediate' };
    case 'never':
      return { guarantee: 'none', reason: 'writes are never sent again on another path' };
    case 'fenced':
    case 'proven':
      return new Fence(impacted, options).run(peers);
  }
}
