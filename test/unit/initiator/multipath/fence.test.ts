/** When a write that was lost may be sent again: every way a controller can be ended, or not, over a clock turned by hand. */
import { expect } from 'chai';
import { ManualClock } from '../../../../native/common/clock.ts';
import { NvmeStatusError } from '../../../../native/common/errors.ts';
import {
  CrossControllerResetLog,
  CrossControllerResetStatus,
} from '../../../../native/wire/logs.ts';
import type { CrossControllerResetEntry } from '../../../../native/wire/logs.ts';
import { Status } from '../../../../native/wire/status.ts';
import { LOG_POLL_MS, fenceController, quiesceMs } from '../../../../initiator/multipath/fence.ts';
import type {
  FenceOptions,
  FenceOutcome,
  FencePeer,
  ImpactedController,
} from '../../../../initiator/multipath/fence.ts';

const IMPACTED: ImpactedController = {
  cntlid: 7,
  ciu: 200,
  cirn: 42n,
  keepAliveMs: 5000,
  keepAliveGranularityMs: 1000,
  trafficBasedKeepAlive: false,
  cqtMs: 3000,
  lastSentMs: 0,
};
const BY_TIME: FenceOutcome = { guarantee: 'quiesce-time', waitedMs: 13_000, promised: true };

async function settle(): Promise<void> {
  for (let turn = 0; turn < 10; turn++) await new Promise((resolve) => setImmediate(resolve));
}

function page(...entries: Partial<CrossControllerResetEntry>[]): Uint8Array {
  const rest = { icid: 0, ciu: 0, acid: 0xffff, ccrs: 0, validated: true, initiated: true };
  return CrossControllerResetLog.encode({
    ne: entries.length,
    entries: entries.map((one) => ({ ...rest, ...one })),
  });
}

const entry = (ccrs: number): Partial<CrossControllerResetEntry> => ({ icid: 7, ciu: 200, ccrs });

function refused(status: number): Error {
  return new NvmeStatusError(status, 'Cross-Controller Reset');
}

class Peer implements FencePeer {
  readonly name: string;
  resetLimit = 4;
  resets = 0;
  reads: boolean[] = [];
  answer: () => Promise<boolean>;
  log = page(entry(CrossControllerResetStatus.inProgress));
  listeners = 0;
  lost: Error | undefined;
  #tell: (() => void)[] = [];
  #fail: ((error: Error) => void)[] = [];

  constructor(name: string, answer: () => Promise<boolean> = () => Promise.resolve(false)) {
    this.name = name;
    this.answer = answer;
  }

  reset(): Promise<boolean> {
    this.resets++;
    return this.answer();
  }

  readLog(removeCompleted: boolean): Promise<Uint8Array> {
    this.reads.push(removeCompleted);
    return this.lost ? Promise.reject(this.lost) : Promise.resolve(this.log);
  }

  resetCompleted(signal: AbortSignal): Promise<void> {
    this.listeners++;
    signal.addEventListener('abort', () => this.listeners--);
    return new Promise((resolve, reject) => {
      this.#tell.push(resolve);
      this.#fail.push(reject);
    });
  }

  event(): void {
    for (const tell of this.#tell.splice(0)) tell();
  }

  lose(): void {
    this.lost = new Error('the path is gone');
    for (const fail of this.#fail.splice(0)) fail(this.lost);
  }
}

/** A fence on its way. */
class Run {
  readonly clock = new ManualClock();
  readonly refusals: string[] = [];
  readonly abort = new AbortController();
  outcome: FenceOutcome | undefined;
  error: unknown;

  constructor(
    peers: readonly Peer[],
    impacted: Partial<ImpactedController> = {},
    options: Partial<FenceOptions> = {},
  ) {
    fenceController({ ...IMPACTED, ...impacted }, peers, {
      clock: this.clock,
      signal: this.abort.signal,
      onRefused: (peer, reason) => this.refusals.push(`${peer}: ${reason}`),
      ...options,
    }).then(
      (outcome) => (this.outcome = outcome),
      (error: unknown) => (this.error = error),
    );
  }

  async advance(ms: number): Promise<void> {
    this.clock.advance(ms);
    await settle();
  }

  /** In steps, so that what waits can wait again. */
  async until(ms: number): Promise<void> {
    while (this.clock.now() < ms) await this.advance(Math.min(100, ms - this.clock.now()));
  }
}

describe('fence of a lost controller', () => {
  const reset = (peer: string): FenceOutcome => ({ guarantee: 'cross-controller-reset', peer });
  const runs: [Run, Peer[]][] = [];

  async function begin(
    peers: Peer[],
    impacted: Partial<ImpactedController> = {},
    options: Partial<FenceOptions> = {},
  ): Promise<Run> {
    const run = new Run(peers, impacted, options);
    runs.push([run, peers]);
    await settle();
    return run;
  }

  afterEach(() => {
    for (const [run, peers] of runs.splice(0)) {
      expect(run.clock.pending, 'timers left').to.equal(0);
      for (const { listeners } of peers) expect(listeners, 'listeners left').to.equal(0);
    }
  });

  it('a peer that ends it at once lets writes go at once', async () => {
    const peer = new Peer('a', () => Promise.resolve(true));
    const run = await begin([peer, new Peer('b')]);
    expect(run.outcome).to.deep.equal(reset('a'));
    expect(peer.reads).to.deep.equal([]);
  });

  it('one that takes longer is heard by its event', async () => {
    const peer = new Peer('a');
    const run = await begin([peer]);
    expect(run.outcome).to.be.undefined;
    peer.log = page(entry(2), { icid: 9, ciu: 200, ccrs: 2 }, entry(1));
    peer.event();
    await settle();
    // The newest entry of that life counts.
    expect(run.outcome).to.deep.equal(reset('a'));
    expect(peer.reads).to.deep.equal([false]);
  });

  it('an event that is lost costs half a second', async () => {
    const peer = new Peer('a');
    const run = await begin([peer]);
    peer.log = page(entry(1));
    await run.advance(LOG_POLL_MS - 1);
    expect(run.outcome).to.be.undefined;
    await run.advance(1);
    expect(run.outcome).to.deep.equal(reset('a'));
  });

  it('a peer that is lost meanwhile is followed by the next', async () => {
    const [first, second] = [new Peer('a'), new Peer('b', () => Promise.resolve(true))];
    const run = await begin([first, second]);
    expect([first.resets, second.resets]).to.deep.equal([1, 0]);
    first.lose();
    await settle();
    expect(run.outcome).to.deep.equal(reset('b'));
    expect(run.refusals).to.deep.equal(['a: the path is gone']);
  });

  it('peers that refuse, fail or forget are followed by the next, then time decides', async () => {
    const refusing = new Peer('a', () => Promise.reject(refused(Status.invalidControllerId)));
    const limited = new Peer('b', () => Promise.reject(refused(Status.crossControllerResetLimit)));
    const failing = new Peer('c');
    failing.log = page(entry(2));
    const forgetting = new Peer('d');
    forgetting.log = page({ icid: 7, ciu: 199, ccrs: 1 }, { icid: 8, ciu: 200, ccrs: 1 });
    const without = new Peer('e');
    without.resetLimit = 0;
    const run = await begin([refusing, limited, failing, forgetting, without]);
    await run.until(12_999);
    expect(run.outcome).to.be.undefined;
    expect(run.refusals.map((text) => text.slice(0, 1))).to.deep.equal(['a', 'b', 'c', 'd']);
    expect(without.resets).to.equal(0);
    await run.advance(1);
    expect(run.outcome).to.deep.equal(BY_TIME);
  });

  it('a peer gets so long only as the controller may need, and time runs meanwhile', async () => {
    const [slow, next] = [new Peer('a'), new Peer('b', () => Promise.resolve(true))];
    const run = await begin([slow, next]);
    await run.until(4900);
    expect(next.resets).to.equal(0);
    await run.until(5000);
    expect(run.outcome).to.deep.equal(reset('b'));
    const alone = await begin([new Peer('a')]);
    await alone.until(13_000);
    expect(alone.outcome).to.deep.equal(BY_TIME);
  });

  it('the time counts from when the controller could last be reached', async () => {
    const run = await begin([], { lastSentMs: -12_000 });
    await run.advance(999);
    expect(run.outcome).to.be.undefined;
    await run.advance(1);
    expect(run.outcome).to.deep.equal(BY_TIME);
    const long = await begin([], { lastSentMs: -20_000 });
    await long.advance(0);
    expect(long.outcome).to.deep.equal(BY_TIME);
  });

  it('the time is what NVMe asks for: keep alive twice, or three times, and CQT', () => {
    expect(quiesceMs(IMPACTED)).to.equal(13_000);
    expect(quiesceMs({ ...IMPACTED, trafficBasedKeepAlive: true })).to.equal(18_000);
    expect(quiesceMs({ ...IMPACTED, keepAliveMs: 1500 })).to.equal(7000);
    expect(quiesceMs({ ...IMPACTED, keepAliveMs: 1500, keepAliveGranularityMs: 0 })).to.equal(6000);
    expect(quiesceMs({ ...IMPACTED, keepAliveMs: 0 })).to.be.undefined;
  });

  it('a controller without CQT makes no promise, and the outcome says so', async () => {
    const run = await begin([], { cqtMs: 0 });
    await run.advance(10_000);
    expect(run.outcome).to.deep.equal({
      guarantee: 'quiesce-time',
      waitedMs: 10_000,
      promised: false,
    });
  });

  it('without keep alive and without help it never ends by itself', async () => {
    const run = await begin([new Peer('a', () => Promise.reject(refused(Status.internalError)))], {
      keepAliveMs: 0,
    });
    expect(run.outcome).to.include({ guarantee: 'none' });
    const helped = await begin([new Peer('a', () => Promise.resolve(true))], { keepAliveMs: 0 });
    expect(helped.outcome).to.deep.equal(reset('a'));
  });

  it('a controller that does not tell its life is not asked for', async () => {
    const peer = new Peer('a', () => Promise.resolve(true));
    const run = await begin([peer], { ciu: 0, cirn: 0n });
    expect(peer.resets).to.equal(0);
    await run.advance(13_000);
    expect(run.outcome).to.deep.equal(BY_TIME);
  });

  it('a reset that goes on already is joined, and a full log is emptied', async () => {
    const joined = new Peer('a', () =>
      Promise.reject(refused(Status.crossControllerResetInProgress)),
    );
    joined.log = page(entry(1));
    const run = await begin([joined]);
    await run.advance(LOG_POLL_MS);
    expect(run.outcome).to.deep.equal(reset('a'));
    const full = new Peer('b');
    full.answer = () =>
      full.reads.length === 0
        ? Promise.reject(refused(Status.crossControllerResetLogFull))
        : Promise.resolve(true);
    const second = await begin([full]);
    expect(second.outcome).to.deep.equal(reset('b'));
    expect(full.reads).to.deep.equal([true]);
  });

  it('is given up at any moment, and leaves nothing behind', async () => {
    const peer = new Peer('a');
    const run = await begin([peer]);
    run.abort.abort(new Error('the namespace is gone'));
    await settle();
    expect(String(run.error)).to.contain('the namespace is gone');
    const early = new Run([peer], {}, { signal: AbortSignal.abort(new Error('too late')) });
    await settle();
    expect(String(early.error)).to.contain('too late');
    expect(peer.resets).to.equal(1);
  });

  it('pages that say more than they hold, or are cut off, end no fence', async () => {
    const lying = page();
    lying.set([0xff, 0xff]);
    const cut = page(entry(1)).subarray(0, 100);
    for (const log of [lying, cut, new Uint8Array()]) {
      const peer = new Peer('a');
      peer.log = log;
      const run = await begin([peer]);
      await run.until(LOG_POLL_MS);
      expect(run.refusals).to.deep.equal(['a: its log does not know of the reset']);
      expect(run.outcome).to.be.undefined;
      await run.until(13_000);
      expect(run.outcome).to.deep.equal(BY_TIME);
    }
    const greedy = page(entry(1));
    greedy.set([0xff, 0xff]);
    const peer = new Peer('a');
    peer.log = greedy;
    const run = await begin([peer]);
    await run.advance(LOG_POLL_MS);
    expect(run.outcome).to.deep.equal(reset('a'));
  });

  it('policy: at once, or not at all, without asking anybody', async () => {
    const peer = new Peer('a', () => Promise.resolve(true));
    const immediate = await begin([peer], {}, { writes: 'immediate' });
    expect(immediate.outcome).to.deep.equal({ guarantee: 'immediate' });
    const never = await begin([peer], {}, { writes: 'never' });
    expect(never.outcome).to.include({ guarantee: 'none' });
    expect(peer.resets).to.equal(0);
  });
});
