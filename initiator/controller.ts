/**
 * A connected controller: its namespaces, admin commands for those who want them, its events and its end. Keep Alive
 * and asynchronous events run by themselves. When the association is lost, every command that was on its way rejects
 * with a DisconnectedError and `disconnected` is emitted once. Runs on the JavaScript thread.
 */
import { EventEmitter } from 'node:events';
import { within } from '../native/common/clock.ts';
import type { Counters } from '../native/common/counters.ts';
import type { FaultInjection, Faults } from '../native/common/faults.ts';
import { asError, messageOf } from '../native/common/errors.ts';
import type { BenchOptions, BenchResult, QueueId, ReactorIndex } from '../native/index.ts';
import { NSID_ALL } from '../native/wire/sqe.ts';
import { ChangedNamespacesLog, LogId } from '../native/wire/logs.ts';
import { CommandSetSelected } from '../native/wire/registers.ts';
import { FeatureId } from '../native/wire/features.ts';
import type { IdentifyController, IdentifyNamespace } from '../native/wire/identify.ts';
import { Cns, IdentifyNamespace as IdentifyNamespaceLayout } from '../native/wire/identify.ts';
import { crossControllerReset, getFeatures, getLogPage, identify } from './admin.ts';
import { keepAlive, setFeatures } from './admin.ts';
import type { CrossControllerResetFields, GetFeatureFields, LogPageFields } from './admin.ts';
import type { Association } from './association.ts';
import { Attachment, geometryOf } from './attachment.ts';
import { followAsyncEvents, wantedEvents } from './async-events.ts';
import type { AsyncEvent } from './async-events.ts';
import { bringUp, connectIoQueues, readIdentifyController, transferLimits } from './bring-up.ts';
import type { BroughtUp, TransferLimits } from './bring-up.ts';
import type { RegisteredBuffer } from './buffers.ts';
import { shutdownController } from './enable.ts';
import { ArgumentError, DisconnectedError } from './errors.ts';
import { KeepAlive } from './keep-alive.ts';
import type { Namespace } from './namespace.ts';
import { NamespaceSet } from './namespace-set.ts';
import type { NamespaceChange } from './namespace-set.ts';
import type { SkippedNamespace } from './namespace-scan.ts';
import type { CommandOptions, CommandResult, Queue } from './queue.ts';

export interface ControllerEvents {
  /** The association was lost; not emitted for `disconnect()`. */
  disconnected: [error: DisconnectedError];
  /** Namespaces came, went or changed. */
  namespacesChanged: [change: NamespaceChange];
  /** Discovery controllers: the log has changed. */
  discoveryLogChanged: [];
  asyncEvent: [event: AsyncEvent];
  /** Something went wrong that does not end the association: a rescan, a refused event request. */
  warning: [error: Error];
}

export interface QueueInfo {
  readonly qid: number;
  readonly entries: number;
  readonly reactor: number;
  readonly outstanding: number;
}

export interface DataQueue {
  readonly id: QueueId;
  readonly reactor: ReactorIndex;
}

export type ControllerState = 'live' | 'disconnecting' | 'disconnected' | 'lost';

export type ControllerBenchOptions = Omit<BenchOptions, 'queues' | 'lbaBytes' | 'commandTimeoutMs'>;

/** Linux gives a shutdown this long, or what RTD3E says. */
const SHUTDOWN_MS_MIN = 5000;
const EVENT_LOG_BYTES = 16;
/** For requests of attached namespaces that are in flight. */
const DETACH_MS_MAX = 2000;
/** CAP.CRMS: ready independent of media. */
const CRMS_INDEPENDENT = 1 << 1;

export class Controller extends EventEmitter<ControllerEvents> implements FaultInjection {
  readonly #association: Association;
  readonly #broughtUp: BroughtUp;
  readonly #keepAlive: KeepAlive;
  #data: IdentifyController;
  #namespaces: NamespaceSet | undefined;
  #nextQueue = 0;
  readonly #attachments = new Set<Attachment>();
  #state: ControllerState = 'live';
  #disconnecting: Promise<void> | undefined;

  private constructor(association: Association, broughtUp: BroughtUp) {
    super();
    this.#association = association;
    this.#broughtUp = broughtUp;
    this.#data = broughtUp.data;
    association.onLost = (error) => {
      this.#lose(error);
    };
    this.#keepAlive = new KeepAlive({
      clock: association.clock,
      keepAliveMs: association.options.keepAliveMs,
      send: (timeoutMs) => keepAlive(association.admin, { timeoutMs }),
      onFailed: (error) => {
        this.#lose(
          new DisconnectedError(`${this.nqn}: Keep Alive failed: ${messageOf(error)}`, {
            cause: error,
          }),
        );
      },
    });
  }

  /** For `connect`: takes the association over, and closes it when it cannot be brought up. */
  static async start(association: Association): Promise<Controller> {
    let controller: Controller | undefined;
    try {
      const broughtUp = await bringUp(association);
      controller = new Controller(association, broughtUp);
      await controller.#prepare();
      return controller;
    } catch (error) {
      if (controller) {
        controller.#state = 'disconnected';
        controller.#keepAlive.stop();
      }
      await association.close();
      throw error;
    }
  }

  get nqn(): string {
    return this.#association.options.nqn;
  }

  /** ADDRESS:PORT. */
  get endpoint(): string {
    return this.#association.options.endpoint;
  }

  /** Our address. */
  get sourceAddress(): string {
    return this.#association.device.info.address;
  }

  /** Empty: RoCEv2 in user space. */
  get rdmaDevice(): string {
    return this.#association.device.info.rdmaDevice;
  }

  get pathMtu(): number {
    return this.#association.device.info.pathMtu;
  }

  get cntlid(): number {
    return this.#association.cntlid;
  }

  get state(): ControllerState {
    return this.#state;
  }

  /** Identify Controller, as last read. */
  get data(): IdentifyController {
    return this.#data;
  }

  /** CAP and VS. */
  get properties(): Pick<BroughtUp['enabled'], 'cap' | 'vs'> {
    return this.#broughtUp.enabled;
  }

  get keepAliveMs(): number {
    return this.#association.options.keepAliveMs;
  }

  /** Longest data transfer of one command, bytes; longer requests are split. */
  get transferBytesMax(): number {
    return this.#namespaces?.limits.transferBytesMax ?? 0;
  }

  /** I/O queues that were asked for: `queues` has fewer when the controller grants no more. */
  get queuesAsked(): number {
    return this.#association.ioQueuesAsked;
  }

  get queues(): readonly QueueInfo[] {
    return this.#association.ioQueues.map((queue, index) => ({
      qid: index + 1,
      entries: this.#association.ioQueueEntries,
      reactor: this.#association.reactorOf(index + 1),
      outstanding: queue.outstanding,
    }));
  }

  /** For queues over several paths: where commands of this controller go, on each reactor. */
  get dataQueues(): readonly DataQueue[] {
    return this.#association.ioQueues.map(({ id }, index) => ({
      id,
      reactor: this.#association.reactorOf(index + 1),
    }));
  }

  /** Bytes and blocks of one command; undefined for discovery controllers. */
  get transferLimits(): TransferLimits | undefined {
    return this.#namespaces?.limits;
  }

  /** In order of NSID. */
  get namespaces(): readonly Namespace[] {
    return this.#namespaces?.list() ?? [];
  }

  /** Namespaces that exist but cannot be used, and why. */
  get skippedNamespaces(): readonly SkippedNamespace[] {
    return this.#namespaces?.skipped ?? [];
  }

  namespace(nsid: number): Namespace {
    const found = this.#namespaces?.get(nsid);
    if (found) return found;
    const skipped = this.skippedNamespaces.find((entry) => entry.nsid === nsid);
    throw new ArgumentError(
      skipped
        ? `namespace ${nsid} cannot be used: ${skipped.reason}`
        : `the controller has no namespace ${nsid}; it has ${this.namespaces.map((ns) => ns.nsid).join(', ') || 'none'}`,
    );
  }

  /** Memory that commands use without a copy. */
  allocateBuffer(bytes: number): RegisteredBuffer {
    this.#checkLive();
    return this.#association.pool.allocate(bytes);
  }

  async identify(): Promise<IdentifyController> {
    this.#data = await readIdentifyController(this.#association, this.#adminOptions);
    return this.#data;
  }

  async identifyNamespace(nsid: number): Promise<IdentifyNamespace> {
    const fields = { cns: Cns.namespace, nsid, name: 'Namespace' };
    const page = await identify(this.#association.admin, fields, this.#adminOptions);
    return IdentifyNamespaceLayout.decode(page);
  }

  getLogPage(fields: LogPageFields): Promise<Uint8Array> {
    return getLogPage(this.#association.admin, fields, this.#adminOptions);
  }

  getFeatures(fields: GetFeatureFields): Promise<CommandResult> {
    return getFeatures(this.#association.admin, fields, this.#adminOptions);
  }

  /**
   * Ends another controller of this host in the same subsystem, such as one that cannot be reached any more. True: nothing of it can
   * write any more; false: log page 1Eh tells when.
   */
  crossControllerReset(fields: CrossControllerResetFields): Promise<boolean> {
    return crossControllerReset(this.#association.admin, fields, this.#adminOptions);
  }

  /** Asks the controller for its namespaces again. */
  async rescan(): Promise<NamespaceChange> {
    this.#checkLive();
    const change = await this.#namespaces?.scan(this.#adminOptions, 'all');
    return change ?? { added: [], removed: [], changed: [] };
  }

  /** Native load on all I/O queues of this controller. */
  bench(options: ControllerBenchOptions): Promise<BenchResult> {
    this.#checkLive();
    const { lbaSize } = this.namespace(options.nsid);
    return this.#association.lease.runtime.door.bench({
      ...options,
      lbaBytes: lbaSize,
      commandTimeoutMs: this.#association.options.commandTimeoutMs,
      queues: this.#association.ioQueues.map((queue) => queue.id),
    });
  }

  /**
   * Makes a namespace usable by other processes, through this one's connection: one queue for each reactor. What is
   * still attached when the controller disconnects, or is lost, is detached.
   */
  attach(nsid: number): Attachment {
    this.#checkLive();
    const namespace = this.namespace(nsid);
    const { ioQueues, lease } = this.#association;
    const limits = this.#namespaces?.limits;
    if (!limits) throw new ArgumentError('a discovery controller has no namespaces');
    const attachment = new Attachment({
      door: lease.runtime.door,
      description: `${this.nqn} namespace ${nsid}`,
      queues: ioQueues.map((queue) => queue.id),
      depth: this.#association.ioQueueEntries - 1,
      commandTimeoutMs: this.#association.options.commandTimeoutMs,
      geometry: geometryOf(namespace, this.#data, limits),
      onDetached: (ended) => this.#attachments.delete(ended),
    });
    this.#attachments.add(attachment);
    return attachment;
  }

  /** Reactors' CPU time, for figures: nanoseconds since they started. */
  reactors(): ReturnType<Association['lease']['runtime']['door']['reactors']> {
    return this.#association.lease.runtime.door.reactors();
  }

  /**
   * Counters of the data path, flat: 'soft.rx.packets', 'host.commands', … Summed over all devices and reactors of this
   * process, so other controllers and a target in it count there too.
   */
  counters(): Counters {
    return this.#association.lease.runtime.door.counters();
  }

  /** On its device, for all connections from that address. Needs the option `faultInjection`. */
  injectFaults(faults: Faults): void {
    this.#association.device.setFaults(faults);
  }

  /** Clean end: I/O queues, shutdown of the controller, admin queue. Resolves when nothing is left of it. */
  disconnect(): Promise<void> {
    this.#disconnecting ??= this.#disconnect();
    return this.#disconnecting;
  }

  /** For paths: the association is given up as lost, without another word to the controller. */
  async abandon(): Promise<void> {
    this.#lose(new DisconnectedError(`${this.nqn} was given up`));
    await this.#association.close();
  }

  get #adminOptions(): CommandOptions {
    return { timeoutMs: this.#association.options.commandTimeoutMs };
  }

  async #prepare(): Promise<void> {
    const association = this.#association;
    const { data, discovery } = this.#broughtUp;
    if (!discovery) await connectIoQueues(association, this.#broughtUp);
    await this.#configureEvents(data);
    if (!discovery) {
      const limits = await transferLimits(association, data);
      this.#namespaces = this.#makeNamespaceSet(limits);
      await this.#namespaces.scan(association.bringUpOptions, 'all');
    }
    if (this.#state === 'lost') throw association.lost ?? new DisconnectedError(this.nqn);
  }

  #makeNamespaceSet(limits: TransferLimits): NamespaceSet {
    const association = this.#association;
    const { cap, cc } = this.#broughtUp.enabled;
    const host = {
      ...limits,
      pool: association.pool,
      commandTimeoutMs: association.options.commandTimeoutMs,
      pickQueue: () => this.#pickQueue(),
    };
    return new NamespaceSet(host, {
      queue: association.admin,
      severalCommandSets: cc.css === CommandSetSelected.allSupported,
      reportsReadiness: (cap.crms & CRMS_INDEPENDENT) !== 0,
    });
  }

  /** The I/O queue with the fewest commands; of equals the next in turn. An idle one ends the search. */
  #pickQueue(): Queue {
    this.#checkLive();
    const { ioQueues } = this.#association;
    let best: Queue | undefined;
    for (let step = 0; step < ioQueues.length; step += 1) {
      const queue = ioQueues[(this.#nextQueue + step) % ioQueues.length];
      if (queue && (!best || queue.outstanding < best.outstanding)) best = queue;
      if (best?.outstanding === 0) break;
    }
    if (!best) throw new DisconnectedError(`${this.nqn} has no I/O queue`);
    this.#nextQueue = (this.#nextQueue + 1) % ioQueues.length;
    return best;
  }

  async #configureEvents(data: IdentifyController): Promise<void> {
    const association = this.#association;
    const cdw11 = wantedEvents(data);
    if (cdw11 === 0) return;
    const fields = { fid: FeatureId.asyncEventConfiguration, cdw11 };
    await setFeatures(association.admin, fields, association.bringUpOptions);
    void followAsyncEvents({
      queue: association.admin,
      handle: (event) => this.#handleEvent(event),
      onRefused: (error) => {
        this.#warn(error);
      },
    });
  }

  async #handleEvent(event: AsyncEvent): Promise<void> {
    try {
      if (event.kind === 'namespaceAttributeChanged') await this.#rescanChanged();
      else await this.#readEventLog(event);
    } catch (error) {
      // The namespaces stay as they are; the next event, or rescan(), tries again.
      if (this.#state === 'live') this.#warn(error);
    }
    if (this.#state !== 'live') return;
    this.emit('asyncEvent', event);
    if (event.kind === 'discoveryLogChanged') this.emit('discoveryLogChanged');
  }

  async #rescanChanged(): Promise<void> {
    const page = await this.getLogPage({
      lid: LogId.changedNamespaces,
      bytes: ChangedNamespacesLog.size,
      nsid: NSID_ALL,
    });
    const { nsids } = ChangedNamespacesLog.decode(page);
    const listed = nsids.slice(0, nsids.includes(0) ? nsids.indexOf(0) : nsids.length);
    const all = listed.length === 0 || listed[0] === NSID_ALL;
    const change = await this.#namespaces?.scan(this.#adminOptions, all ? 'all' : new Set(listed));
    if (change && this.#state === 'live') this.emit('namespacesChanged', change);
  }

  /** An event stays masked until its log is read; the header is enough, and what it says is the listener's. */
  async #readEventLog(event: AsyncEvent): Promise<void> {
    if (event.logPage === 0) return;
    await this.getLogPage({ lid: event.logPage, bytes: EVENT_LOG_BYTES, nsid: NSID_ALL });
  }

  #warn(error: unknown): void {
    this.emit('warning', asError(error));
  }

  #checkLive(): void {
    if (this.#state === 'live') return;
    throw new DisconnectedError(`${this.nqn} is ${this.#state}`);
  }

  #lose(error: DisconnectedError): void {
    if (this.#state !== 'live') return;
    this.#state = 'lost';
    this.#keepAlive.stop();
    void this.#detachAll();
    void this.#association.close();
    this.emit('disconnected', error);
  }

  async #disconnect(): Promise<void> {
    const association = this.#association;
    this.#keepAlive.stop();
    const detached = this.#detachAll();
    if (this.#state === 'live') {
      this.#state = 'disconnecting';
      // Closing the queues ends what a silent controller does not.
      await within(association.clock, DETACH_MS_MAX, detached);
      await association.closeIoQueues();
      await this.#shutdown();
    }
    await detached;
    await association.close();
    if (this.#state === 'disconnecting') this.#state = 'disconnected';
  }

  async #detachAll(): Promise<void> {
    await Promise.all([...this.#attachments].map((attachment) => attachment.detach()));
  }

  /** The controller may be gone already; then there is nothing to shut down. */
  async #shutdown(): Promise<void> {
    const { admin, clock } = this.#association;
    const options = { timeoutMs: SHUTDOWN_MS_MIN };
    const budgetMs = Math.max(SHUTDOWN_MS_MIN, this.#data.rtd3e / 1000);
    try {
      const access = { queue: admin, clock, options, nqn: this.nqn };
      const done = await shutdownController(access, this.#broughtUp.enabled.cc, budgetMs);
      if (!done) this.#warn(new Error(`${this.nqn}: shutdown took longer than ${budgetMs} ms`));
    } catch (error) {
      this.#warn(error);
    }
  }
}
