/**
 * One controller: an association of a host with a subsystem. Holds the register model (CC, CSTS), what the host has set, and the
 * queues; the commands themselves stand in commands.ts. Lives from a successful admin Connect to `close`.
 */
import { within } from '../native/common/clock.ts';
import { messageOf } from '../native/common/errors.ts';
import { StateMachine } from '../native/common/state-machine.ts';
import { formatUuid } from '../native/common/uuid.ts';
import { AsyncEventType, AsyncNotice } from '../native/wire/aer.ts';
import { AsyncEventConfiguration } from '../native/wire/features.ts';
import { viewOf } from '../native/wire/layout.ts';
import { LogId } from '../native/wire/logs.ts';
import { Csts, ShutdownNotification, ShutdownStatus } from '../native/wire/registers.ts';
import { Status } from '../native/wire/status.ts';
import { AsyncEvents } from './aer.ts';
import type { AnaStateName } from './ana.ts';
import { AnaLogReader } from './ana-log.ts';
import { ChangedNamespaces } from './changed-namespaces.ts';
import type { PortConfig } from './config.ts';
import type { Arrival, Context } from './context.ts';
import { CrossControllerResets } from './cross-controller-reset.ts';
import { ErrorLog } from './error-log.ts';
import type { ControllerSummary, QueueSummary } from './events.ts';
import { KeepAlive } from './keep-alive.ts';
import type { Namespace } from './namespace.ts';
import type { Life } from './life.ts';
import { fail, reply } from './outcome.ts';
import { decodeCc, enableProblem } from './properties.ts';
import type { PropertySource } from './properties.ts';
import type { TargetQueue } from './queue.ts';
import type { Subsystem } from './subsystem.ts';

/**
 *   disabled → ready → resetting → disabled      CC.EN 0 → 1 → 0
 *   disabled → failed                            CC.EN 1 with a configuration that is not supported: CSTS.CFS
 *   disabled | ready → shutdown → resetting      CC.SHN
 *   any → deleted
 */
type State = 'disabled' | 'ready' | 'resetting' | 'failed' | 'shutdown' | 'deleted';

/** Granted queues, 1-based. */
export interface GrantedQueues {
  readonly submission: number;
  readonly completion: number;
}

export interface ControllerIdentity {
  readonly cntlid: number;
  readonly hostNqn: string;
  readonly hostId: Uint8Array;
  readonly keepAliveMs: number;
}

export class Controller implements PropertySource {
  readonly subsystem: Subsystem;
  readonly cntlid: number;
  readonly hostNqn: string;
  readonly hostId: Uint8Array;
  readonly adminQueue: TargetQueue;
  readonly ioQueues = new Map<number, TargetQueue>();
  readonly errorLog = new ErrorLog();
  readonly changedNamespaces = new ChangedNamespaces();
  readonly anaLog: AnaLogReader;
  readonly keepAlive: KeepAlive;
  readonly asyncEvents: AsyncEvents;
  readonly resets = new CrossControllerResets();
  readonly createdAtMs: number;
  /** Set Features Number of Queues; undefined until the host asks. */
  grantedQueues: GrantedQueues | undefined;
  /** Asynchronous Event Configuration as the host wrote it. */
  asyncEventConfiguration = 0;
  /** Abort commands being worked on. */
  aborts = 0;
  readonly #context: Context;
  readonly #machine = new StateMachine<State>('controller', 'disabled', {
    disabled: ['ready', 'failed', 'shutdown', 'deleted'],
    ready: ['resetting', 'shutdown', 'deleted'],
    resetting: ['disabled', 'deleted'],
    failed: ['resetting', 'deleted'],
    shutdown: ['resetting', 'deleted'],
    deleted: [],
  });
  #cc = 0;
  #life: Life | undefined;
  /** The end of the life that ends. */
  #quiet: Promise<void> = Promise.resolve();
  #closing: Promise<void> | undefined;

  constructor(
    context: Context,
    subsystem: Subsystem,
    queue: TargetQueue,
    identity: ControllerIdentity,
  ) {
    this.#context = context;
    this.subsystem = subsystem;
    this.cntlid = identity.cntlid;
    this.hostNqn = identity.hostNqn;
    this.hostId = identity.hostId;
    this.adminQueue = queue;
    this.createdAtMs = context.clock.now();
    this.anaLog = new AnaLogReader((groupsOnly) =>
      subsystem.anaPage(queue.arrival.endpoint, groupsOnly),
    );
    this.asyncEvents = new AsyncEvents((tag, result) => {
      queue.complete(tag, reply(result));
    });
    this.keepAlive = new KeepAlive(context.clock, context.runtime.door, () => {
      this.#fellSilent();
    });
    this.keepAlive.set(identity.keepAliveMs);
  }

  get port(): PortConfig {
    return this.adminQueue.arrival.port;
  }

  get arrival(): Arrival {
    return this.adminQueue.arrival;
  }

  get discovery(): boolean {
    return this.subsystem.discovery;
  }

  get ready(): boolean {
    return this.#machine.is('ready');
  }

  get deleted(): boolean {
    return this.#machine.is('deleted');
  }

  /** Of an I/O controller, from enabled until its I/O queues have ended. */
  get life(): Life | undefined {
    return this.#life;
  }

  get context(): Context {
    return this.#context;
  }

  /** Its host hears of ANA states, and acts on them. */
  get followsAna(): boolean {
    return !this.discovery && this.anaLog.followed && this.#wants('anaChange');
  }

  /** Of the namespace's group, at the port of this controller. */
  anaState({ anaGroup }: Namespace): AnaStateName {
    return this.subsystem.ana.states.state(this.arrival.endpoint, anaGroup);
  }

  get summary(): ControllerSummary {
    return {
      subsystemNqn: this.subsystem.nqn,
      cntlid: this.cntlid,
      hostNqn: this.hostNqn,
      hostId: formatUuid(this.hostId),
      peer: this.arrival.peer,
    };
  }

  queueSummary({ cmQid, arrival, depth }: TargetQueue): QueueSummary {
    return { ...this.summary, qid: cmQid, reactor: arrival.reactor, depth };
  }

  /** I/O queue ids go up to this. */
  get maxQid(): number {
    const granted = this.grantedQueues;
    return granted ? Math.min(granted.submission, granted.completion) : this.port.maxQueues;
  }

  // Registers.

  get queueDepth(): number {
    return this.port.queueDepth;
  }

  get cc(): number {
    return this.#cc;
  }

  get csts(): Uint8Array {
    const shutdown =
      this.#machine.is('shutdown') ||
      (this.#machine.is('resetting') && decodeCc(this.#cc).shn !== ShutdownNotification.none);
    return Csts.encode({
      // Stays set until the queues of a reset are gone.
      rdy: this.#machine.is('ready', 'resetting', 'shutdown'),
      cfs: this.#machine.is('failed'),
      shst: shutdown ? ShutdownStatus.complete : ShutdownStatus.normal,
    });
  }

  writeCc(value: number): void {
    this.#cc = value;
    this.#settle();
  }

  /** Brings the state to what CC asks for. */
  #settle(): void {
    const cc = decodeCc(this.#cc);
    const shutdown = cc.shn !== ShutdownNotification.none;
    if (this.#machine.is('disabled', 'ready') && shutdown) {
      this.#machine.move('shutdown');
    } else if (this.#machine.is('disabled') && cc.en) {
      this.#enable();
    } else if (this.#machine.is('ready', 'failed', 'shutdown') && !cc.en && !shutdown) {
      this.#reset();
    }
  }

  #enable(): void {
    const problem = enableProblem(decodeCc(this.#cc), this.discovery) ?? this.#beginLife();
    if (problem === undefined) {
      this.#machine.move('ready');
    } else {
      this.#context.log.warn({ ...this.summary, problem }, 'controller cannot be enabled');
      this.#machine.move('failed');
    }
  }

  /** Why it cannot begin. Before any I/O queue can connect. */
  #beginLife(): string | undefined {
    if (this.discovery) return undefined;
    try {
      this.#life = this.subsystem.fences.begin(this.cntlid, this, async (reason) => {
        void this.close(reason);
        await this.#quiet;
      });
      return undefined;
    } catch (error) {
      return messageOf(error);
    }
  }

  /** Ends the life there is, when these queues, all it has, are quiet. */
  async #endLife(queues: readonly TargetQueue[]): Promise<void> {
    const life = this.#life;
    if (!life) return;
    const quiet = Promise.all(queues.map((queue) => queue.quiet));
    await this.#quiesced(quiet);
    if (this.#life !== life) return;
    this.#life = undefined;
    this.subsystem.fences.over(life);
  }

  /** Controller Level Reset (NVMe Base 2.1 section 3.7.2): I/O queues go, settings return to their defaults. */
  #reset(): void {
    this.#machine.move('resetting');
    this.grantedQueues = undefined;
    this.asyncEventConfiguration = 0;
    this.changedNamespaces.clear();
    this.anaLog.clear();
    this.resets.removeCompleted();
    this.#dropAsyncEvents();
    const queues = [...this.ioQueues.values()];
    for (const queue of queues) queue.close();
    this.#quiet = this.#endLife(queues);
    void Promise.all([this.#quiet, ...queues.map(({ closed }) => closed)]).then(() => {
      if (!this.#machine.is('resetting')) return;
      this.#machine.move('disabled');
      // The host may have set CC.EN again meanwhile.
      this.#settle();
    });
  }

  #dropAsyncEvents(): void {
    const dropped = fail(Status.abortRequested, undefined, 'controller reset');
    for (const tag of this.asyncEvents.clear()) this.adminQueue.complete(tag, dropped);
  }

  // Events for the host.

  namespaceChanged(nsid: number): void {
    this.changedNamespaces.add(nsid);
    if (!this.#wants('namespaceAttribute')) return;
    this.asyncEvents.raise({
      type: AsyncEventType.notice,
      info: AsyncNotice.namespaceAttributeChanged,
      lid: LogId.changedNamespaces,
    });
  }

  /** The state of a group at its port, or the group of a namespace. */
  anaChanged(): void {
    if (!this.#wants('anaChange')) return;
    this.asyncEvents.raise({
      type: AsyncEventType.notice,
      info: AsyncNotice.anaChange,
      lid: LogId.ana,
    });
  }

  discoveryChanged(): void {
    if (!this.#wants('discoveryChange')) return;
    this.asyncEvents.raise({
      type: AsyncEventType.notice,
      info: AsyncNotice.discoveryLogChanged,
      lid: LogId.discovery,
    });
  }

  crossControllerResetCompleted(): void {
    if (this.deleted || !this.#wants('crossControllerReset')) return;
    this.asyncEvents.raise({
      type: AsyncEventType.notice,
      info: AsyncNotice.crossControllerResetCompleted,
      lid: LogId.crossControllerReset,
    });
  }

  #wants(
    notice: 'namespaceAttribute' | 'anaChange' | 'discoveryChange' | 'crossControllerReset',
  ): boolean {
    const bytes = new Uint8Array(AsyncEventConfiguration.size);
    viewOf(bytes).setUint32(0, this.asyncEventConfiguration, true);
    return AsyncEventConfiguration.decode(bytes)[notice];
  }

  // Queues and the end.

  queueClosed(queue: TargetQueue, reason: string): void {
    if (queue === this.adminQueue) {
      void this.close(reason);
      return;
    }
    for (const [qid, mine] of this.ioQueues) {
      if (mine === queue) this.ioQueues.delete(qid);
    }
    // Native ended the queue by what it has noticed before the timer here.
    if (this.keepAlive.over) this.#fellSilent();
  }

  #fellSilent(): void {
    this.#context.log.warn(this.summary, 'keep alive timer expired');
    void this.close('keep alive timer expired');
  }

  /** Ends the association; resolves when native has nothing left of its queues. */
  close(reason: string): Promise<void> {
    this.#closing ??= this.#close(reason);
    return this.#closing;
  }

  async #close(reason: string): Promise<void> {
    this.#machine.move('deleted');
    this.keepAlive.end();
    this.asyncEvents.clear();
    this.anaLog.clear();
    const queues = [...this.ioQueues.values(), this.adminQueue];
    for (const queue of queues) queue.close();
    this.#quiet = this.#endLife(queues);
    await Promise.all([this.#quiet, ...queues.map(({ closed }) => closed)]);
    this.subsystem.detach(this);
    this.#context.drain.controllerGone();
    this.#context.log.info({ ...this.summary, reason }, 'host gone');
    this.#context.emit('controllerDeleted', this.summary, reason);
  }

  /** Hosts that cannot ask wait as long as CQT says: whoever keeps a disk slower than that must hear of it. */
  async #quiesced(quiet: Promise<unknown>): Promise<void> {
    const { commandQuiesceMs } = this.subsystem;
    if (await within(this.#context.clock, commandQuiesceMs, quiet)) return;
    this.#context.log.error(
      { ...this.summary, commandQuiesceMs },
      'commands of a controller that has ended are still in a backing beyond the command quiesce time: a host that only waits may be overtaken; raise "commandQuiesceMs" of the subsystem, or look at the disk',
    );
    await quiet;
  }
}
