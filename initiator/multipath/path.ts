/**
 * One path to a subsystem: the controller behind it, and getting it back when it is lost. The states, and what moves
 * between them:
 *
 *   connecting ──> live <──> reconnecting ──> failed        given up after ctrlLossMs, or refused for good
 *        │           │             │             │
 *        └───────────┴─────────────┴─────────────┴──> removing ──> removed
 *
 * Each life of the controller is an incarnation of the path. Runs on the JavaScript thread.
 */
import { messageOf } from '../../native/common/errors.ts';
import { StateMachine } from '../../native/common/state-machine.ts';
import type { Moves } from '../../native/common/state-machine.ts';
import { connectIn } from '../connect.ts';
import type { Controller } from '../controller.ts';
import type { Environment } from '../environment.ts';
import type { AnaGroup, AnaState } from './ana-log.ts';
import { readAnaLog } from './ana-log.ts';
import type { ResolvedMultipath, ResolvedPath } from './options.ts';
import { Timers, jittered } from './timers.ts';

export type PathState = 'connecting' | 'live' | 'reconnecting' | 'failed' | 'removing' | 'removed';

const MOVES: Moves<PathState> = {
  connecting: ['live', 'reconnecting', 'failed', 'removing'],
  live: ['reconnecting', 'failed', 'removing'],
  reconnecting: ['live', 'failed', 'removing'],
  failed: ['removing'],
  removing: ['removed'],
  removed: [],
};

/** A controller that cannot be a path of this subsystem, however often it is asked. */
export class PathRefusedError extends Error {
  override readonly name = 'PathRefusedError';
}

/** What a path tells its subsystem. */
export interface PathOwner {
  readonly environment: Environment;
  readonly options: ResolvedMultipath;
  /** Each is higher than those before, of whichever path: indexes of paths are used again. */
  nextIncarnation(): number;
  /** Throws a PathRefusedError when this controller does not belong here; resolves when it is taken in. */
  admit(path: Path, controller: Controller): void;
  /** Its controller, its ANA states or its namespaces are others now. */
  changed(path: Path): void;
  /** The controller of this incarnation is lost; what it was sent may still be executed. */
  lost(path: Path, controller: Controller): void;
  moved(path: Path, from: PathState, reason: string): void;
  warn(path: Path, error: Error): void;
}

/** A path that refuses commands for no ANA reason is tried again after so long, then after twice that, … */
const REFUSED_MS_MIN = 100;
const REFUSED_MS_MAX = 1600;
/** Without a refusal for so long, the next one is a first one again. */
const REFUSED_QUIET_MS = 10_000;
/** A log that could not be read is read again after so long. */
const ANA_AGAIN_MS = 1000;
/** Linux gives a group in the state "change" twice the time that the controller says. */
const ANATT_FACTOR = 2;

type TimerName = 'reconnect' | 'ctrlLoss' | 'fastIoFail' | 'anaTransition' | 'anaAgain' | 'refused';

export class Path {
  readonly index: number;
  readonly endpoint: string;
  readonly preferred: boolean;
  readonly #owner: PathOwner;
  readonly #resolved: ResolvedPath;
  readonly #machine: StateMachine<PathState>;
  #controller: Controller | undefined;
  #incarnation = 0;
  #ana: ReadonlyMap<number, AnaGroup> | undefined;
  #reason = '';
  #attempts = 0;
  #ioMayFail = false;
  #attempting: AbortController | undefined;
  /** Never rejects. */
  #attempted: Promise<unknown> = Promise.resolve();
  #removed: Promise<void> | undefined;
  #anaProblem = '';
  #reading: Promise<void> | undefined;
  #readAgain = false;
  #refusedMs = REFUSED_MS_MIN;
  #refusedAt = 0;
  readonly #timers: Timers<TimerName>;

  constructor(owner: PathOwner, index: number, resolved: ResolvedPath) {
    this.#owner = owner;
    this.index = index;
    this.#resolved = resolved;
    this.endpoint = resolved.endpoint;
    this.preferred = resolved.spec.preferred ?? false;
    this.#machine = new StateMachine(`path ${this.endpoint}`, 'connecting', MOVES);
    this.#timers = new Timers(owner.environment.clock);
  }

  get state(): PathState {
    return this.#machine.state;
  }

  /** Of the live path. */
  get controller(): Controller | undefined {
    return this.#controller;
  }

  /** Rises with each association; 0 before the first. */
  get incarnation(): number {
    return this.#incarnation;
  }

  /** Why it is not live. */
  get reason(): string {
    return this.#reason;
  }

  /** To connect it since it was last live. */
  get attempts(): number {
    return this.#attempts;
  }

  /** Until the next attempt; undefined: one runs, or none is needed. */
  get nextAttemptMs(): number | undefined {
    return this.#timers.leftMs('reconnect');
  }

  /** I/O need not wait for it any more. */
  get hopeless(): boolean {
    return this.#ioMayFail || this.#machine.is('failed', 'removing', 'removed');
  }

  /** On this path; a controller without ANA serves all its namespaces alike. */
  anaState(group: number): AnaState {
    if (!this.#ana) return 'optimized';
    return this.#ana.get(group)?.state ?? 'inaccessible';
  }

  get anaGroups(): readonly AnaGroup[] {
    return [...(this.#ana?.values() ?? [])];
  }

  /** Resolves when it is live. Rejects when the first attempt, which `signal` ends, fails; it tries on unless it was refused. */
  async start(signal?: AbortSignal): Promise<void> {
    try {
      await this.#attempt(signal);
    } catch (error) {
      if (this.#machine.is('connecting')) this.#notConnected(error);
      throw error;
    }
  }

  /** Ends this association: the controller is lost, and reconnected. */
  reset(reason: string): void {
    const controller = this.#controller;
    if (controller && this.#machine.is('live')) this.#lose(controller, reason);
    // What is waited for there would never end.
    else if (this.#machine.is('removing')) void controller?.abandon();
  }

  /** The controller's ANA states once more; several wishes at a time make one reading more. */
  async refreshAna(): Promise<void> {
    this.#readAgain = true;
    this.#reading ??= this.#readAna().finally(() => {
      this.#reading = undefined;
    });
    await this.#reading;
  }

  /** Native says that it refused a command with this status (SC | SCT << 8), 0: memory. */
  refused(ana: boolean): void {
    if (!this.#machine.is('live')) return;
    if (ana && this.#ana) {
      void this.refreshAna();
      return;
    }
    if (this.#timers.has('refused')) return;
    const now = this.#owner.environment.clock.now();
    if (now - this.#refusedAt > REFUSED_QUIET_MS) this.#refusedMs = REFUSED_MS_MIN;
    this.#refusedAt = now;
    this.#timers.arm('refused', this.#refusedMs, () => {
      this.#refusedMs = Math.min(2 * this.#refusedMs, REFUSED_MS_MAX);
      this.#owner.changed(this);
    });
  }

  /** For good. `drained` resolves when no command is there any more, or it need not be waited for. */
  remove(drained: () => Promise<unknown>): Promise<void> {
    this.#removed ??= this.#remove(drained);
    return this.#removed;
  }

  async #remove(drained: () => Promise<unknown>): Promise<void> {
    this.#move('removing', 'removed by the user');
    this.#timers.cancelAll();
    this.#attempting?.abort();
    this.#owner.changed(this);
    await drained();
    const controller = this.#controller;
    this.#controller = undefined;
    await controller?.disconnect();
    await this.#attempted;
    this.#move('removed', 'removed by the user');
  }

  // ---- Connecting

  #attempt(signal?: AbortSignal): Promise<void> {
    this.#attempts += 1;
    const attempt = this.#connect(signal);
    this.#attempted = attempt.catch(() => undefined);
    return attempt;
  }

  async #connect(signal?: AbortSignal): Promise<void> {
    const { environment } = this.#owner;
    const attempting = new AbortController();
    this.#attempting = attempting;
    const either = AbortSignal.any([attempting.signal, ...(signal ? [signal] : [])]);
    try {
      const controller = await connectIn(environment, {
        ...this.#resolved.connect,
        signal: either,
      });
      await this.#takeWithin(controller, either);
    } finally {
      this.#attempting = undefined;
    }
  }

  /** A controller that does not tell its ANA states in time is given up, as one that is not wanted any more. */
  async #takeWithin(controller: Controller, signal: AbortSignal): Promise<void> {
    const { environment, options } = this.#owner;
    const giveUp = (): void => void controller.abandon();
    const timer = environment.clock.after(options.common.connectTimeoutMs, giveUp);
    signal.addEventListener('abort', giveUp);
    try {
      await this.#take(controller);
    } catch (error) {
      if (this.#controller === controller) this.#controller = undefined;
      await controller.disconnect();
      throw error;
    } finally {
      timer.cancel();
      signal.removeEventListener('abort', giveUp);
    }
  }

  async #take(controller: Controller): Promise<void> {
    this.#owner.admit(this, controller);
    this.#incarnation = this.#owner.nextIncarnation();
    this.#controller = controller;
    this.#follow(controller);
    if (controller.data.cmicAna) {
      await this.refreshAna();
      if (!this.#ana) throw new Error(this.#anaProblem);
    }
    if (controller.state !== 'live') throw new Error('the association was lost at once');
    if (!this.#machine.can('live')) throw new Error(`the path is ${this.state}`);
    this.#timers.cancelAll();
    this.#attempts = 0;
    this.#ioMayFail = false;
    this.#refusedMs = REFUSED_MS_MIN;
    this.#move('live', '');
    this.#watchTransition();
    this.#owner.changed(this);
    if (this.#readAgain) void this.refreshAna();
  }

  #follow(controller: Controller): void {
    this.#ana = undefined;
    controller.once('disconnected', (error) => {
      if (this.#controller === controller) this.#lose(controller, error.message);
    });
    controller.on('warning', (error) => {
      this.#owner.warn(this, error);
    });
    controller.on('namespacesChanged', () => {
      if (this.#controller === controller) this.#owner.changed(this);
    });
    controller.on('asyncEvent', ({ kind }) => {
      if (kind === 'anaChange' && this.#controller === controller) void this.refreshAna();
    });
  }

  // ---- Losing it, and getting it back

  #lose(controller: Controller, reason: string): void {
    if (!this.#machine.is('live')) return;
    this.#controller = undefined;
    this.#timers.cancelAll();
    this.#owner.lost(this, controller);
    this.#beginReconnecting(reason);
    this.#owner.changed(this);
    // Not disconnect(): what is lost cannot be shut down in good order.
    void controller.abandon();
  }

  #notConnected(error: unknown): void {
    if (error instanceof PathRefusedError) {
      this.#timers.cancelAll();
      this.#move('failed', error.message);
    } else {
      this.#beginReconnecting(messageOf(error));
    }
    this.#owner.changed(this);
  }

  #beginReconnecting(reason: string): void {
    const { ctrlLossMs, fastIoFailMs, reconnectDelayMs } = this.#owner.options;
    if (ctrlLossMs === 0) {
      this.#move('failed', reason);
      return;
    }
    this.#move('reconnecting', reason);
    if (ctrlLossMs !== Infinity) {
      this.#timers.arm('ctrlLoss', ctrlLossMs, () => {
        this.#attempting?.abort();
        this.#move('failed', `${this.#reason}; given up after ${ctrlLossMs} ms`);
        this.#timers.cancelAll();
        this.#owner.changed(this);
      });
    }
    if (fastIoFailMs !== Infinity) {
      this.#timers.arm('fastIoFail', fastIoFailMs, () => {
        this.#ioMayFail = true;
        this.#owner.changed(this);
      });
    }
    this.#armReconnect(reconnectDelayMs);
  }

  #armReconnect(delayMs: number): void {
    this.#timers.arm('reconnect', jittered(delayMs), () => {
      void this.#reconnect();
    });
  }

  async #reconnect(): Promise<void> {
    const { clock } = this.#owner.environment;
    const { reconnectDelayMs } = this.#owner.options;
    const began = clock.now();
    try {
      await this.#attempt();
    } catch (error) {
      if (!this.#machine.is('reconnecting')) return;
      this.#reason = messageOf(error);
      // What contradicts it may be a path that is lost, too, and does not know it yet.
      if (error instanceof PathRefusedError && this.#incarnation === 0) {
        this.#timers.cancelAll();
        this.#move('failed', error.message);
        this.#owner.changed(this);
        return;
      }
      this.#owner.warn(this, new Error(`path ${this.endpoint}: ${this.#reason}`));
      const left = reconnectDelayMs - (clock.now() - began);
      // One that took longer found a target that is silent, or has more to do than it can: no attempt follows at once.
      this.#armReconnect(left > 0 ? left : reconnectDelayMs);
    }
  }

  // ---- ANA

  async #readAna(): Promise<void> {
    while (this.#readAgain) {
      this.#readAgain = false;
      const controller = this.#controller;
      if (controller?.data.cmicAna !== true) return;
      try {
        const ana = await this.#anaOf(controller);
        if (this.#controller !== controller) continue;
        this.#ana = ana;
      } catch (error) {
        if (this.#controller !== controller) continue;
        this.#anaProblem = `its ANA log cannot be read: ${messageOf(error)}`;
        if (!this.#machine.is('live')) return;
        this.#owner.warn(this, new Error(`path ${this.endpoint}: ${this.#anaProblem}`));
        this.#timers.arm('anaAgain', ANA_AGAIN_MS, () => void this.refreshAna());
        return;
      }
      // It goes live with this; what was told meanwhile is read then.
      if (!this.#machine.is('live')) return;
      this.#watchTransition();
      this.#owner.changed(this);
    }
  }

  async #anaOf(controller: Controller): Promise<ReadonlyMap<number, AnaGroup>> {
    const log = await readAnaLog((fields) => controller.getLogPage(fields), controller.data);
    return log.groups;
  }

  /** A group that stays in the state "change" for too long costs the association. */
  #watchTransition(): void {
    if (!this.#machine.is('live')) return;
    const changing = this.anaGroups.some(({ state }) => state === 'change');
    if (!changing) {
      this.#timers.cancel('anaTransition');
    } else if (!this.#timers.has('anaTransition')) {
      const seconds = this.#controller?.data.anatt ?? 0;
      this.#timers.arm('anaTransition', ANATT_FACTOR * seconds * 1000, () => {
        this.reset(`an ANA group was in the state "change" for twice ANATT (${seconds} s)`);
      });
    }
  }

  // ---- Small things

  #move(to: PathState, reason: string): void {
    const from = this.#machine.state;
    this.#machine.move(to);
    this.#reason = reason;
    this.#owner.moved(this, from, reason);
  }
}
