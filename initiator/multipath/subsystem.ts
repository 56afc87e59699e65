/**
 * A subsystem that is reached over several paths: one set of namespaces, whose I/O goes on as long as one path does, and
 * waits while there is none. What belongs to one path stands in path.ts, to one namespace in namespace-head.ts; here paths
 * are taken in, and namespaces and paths brought together. Runs on the JavaScript thread.
 */
import { EventEmitter } from 'node:events';
import { NvmeofError } from '../../native/common/errors.ts';
import { MULTIPATH, PATHS_MAX } from '../../native/index.ts';
import type { BenchResult, PathPolicy, PathQueueOptions } from '../../native/index.ts';
import type { RuntimeLease } from '../../native/shared-runtime.ts';
import { Attachment, geometryOf } from '../attachment.ts';
import { BufferPool } from '../buffers.ts';
import type { RegisteredBuffer } from '../buffers.ts';
import type { Controller, ControllerBenchOptions } from '../controller.ts';
import { systemEnvironment } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { ArgumentError, DisconnectedError } from '../errors.ts';
import type { Namespace } from '../namespace.ts';
import type { PathEvent } from '../queue.ts';
import { admissionProblem } from './admission.ts';
import type { FirstController } from './admission.ts';
import type { AnaGroup } from './ana-log.ts';
import type { DiscoveredPaths } from './discovered-paths.ts';
import { viewOf } from './events.ts';
import type { MultipathEvents, PathView } from './events.ts';
import { LostWrites } from './lost-writes.ts';
import { NamespaceHead, joinProblem, otherIdentity } from './namespace-head.ts';
import type { HeadContext } from './namespace-head.ts';
import { policyOf, resolveMultipath } from './options.ts';
import type { MultipathOptions, PathSpec, ResolvedMultipath } from './options.ts';
import { Path, PathRefusedError } from './path.ts';
import type { PathOwner, PathState } from './path.ts';

const STATUS_TYPE_PATH = 3;
const ANA_CODES: ReadonlySet<number> = new Set([0x01, 0x02, 0x03]);
/** CRDT is in units of 100 ms. */
const RETRY_DELAY_UNIT_MS = 100;

function sameGroups(a: readonly AnaGroup[], b: readonly AnaGroup[]): boolean {
  return (
    a.length === b.length && a.every(({ id, state }, i) => b[i]?.id === id && b[i].state === state)
  );
}

export class MultipathSubsystem extends EventEmitter<MultipathEvents> implements PathOwner {
  readonly environment: Environment;
  readonly options: ResolvedMultipath;
  /** Keeps the paths as discovery services list them; ends with the subsystem. */
  discovery: DiscoveredPaths | undefined;
  readonly #lease: RuntimeLease;
  readonly #pool: BufferPool;
  readonly #paths = new Map<number, Path>();
  readonly #heads = new Map<number, NamespaceHead>();
  readonly #shownGroups = new Map<Path, readonly AnaGroup[]>();
  readonly #conflicts = new Map<string, string>();
  readonly #attachments = new Set<Attachment>();
  readonly #lostWrites: LostWrites;
  readonly #closingHeads = new Set<Promise<void>>();
  #incarnations = 0;
  #queueOptions: PathQueueOptions;
  #first: FirstController | undefined;
  #closing: Promise<void> | undefined;

  /**
   * Resolves when one path is live and its namespaces are known; the others are connected beside it. One that is refused stays in
   * `paths`, failed, with the reason.
   */
  static async connect(
    options: MultipathOptions,
    environment: Environment = systemEnvironment,
  ): Promise<MultipathSubsystem> {
    const resolved = resolveMultipath(options);
    const subsystem = new MultipathSubsystem(resolved, environment);
    const starts = resolved.paths.map(({ spec }) => subsystem.#startPath(spec));
    try {
      await Promise.any(starts);
    } catch (error) {
      await subsystem.disconnect();
      throw error instanceof AggregateError ? error.errors[0] : error;
    }
    return subsystem;
  }

  private constructor(options: ResolvedMultipath, environment: Environment) {
    super();
    this.options = options;
    this.environment = environment;
    const { cores, pollForever, commandTimeoutMs } = options.common;
    this.#lease = environment.acquire({ ...(cores ? { cores } : {}), pollForever });
    this.#pool = new BufferPool(this.#lease.runtime.door, MULTIPATH);
    this.#queueOptions = {
      policy: options.policy,
      ioTimeoutMs: commandTimeoutMs,
      retryDelaysMs: [0, 0, 0],
    };
    this.#lostWrites = new LostWrites({
      clock: environment.clock,
      writes: options.writes,
      peers: (lost) => this.#livePaths(lost),
      onOver: (path, incarnation, outcome) => {
        const repeat = outcome.guarantee !== 'none';
        for (const head of this.#heads.values()) head.release(path, incarnation, repeat);
        this.emit('writesReleased', path.endpoint, outcome);
      },
      onHeld: ({ endpoint }, cntlid, reason) => {
        const writes = this.#lease.runtime.door.counters()['live.multipath.held'] ?? 0;
        this.emit('writesHeld', endpoint, { cntlid, writes, reason });
      },
      warn: (message) => this.emit('warning', new Error(message)),
    });
  }

  get nqn(): string {
    return this.options.nqn;
  }

  get policy(): PathPolicy {
    return this.#queueOptions.policy;
  }

  get paths(): readonly PathView[] {
    return [...this.#paths.values()].map(viewOf);
  }

  /** In order of NSID. */
  get namespaces(): readonly Namespace[] {
    return [...this.#heads.values()]
      .map(({ namespace }) => namespace)
      .sort((a, b) => a.nsid - b.nsid);
  }

  namespace(nsid: number): Namespace {
    return this.#head(nsid).namespace;
  }

  /** Memory that commands use without a copy, on whichever path. */
  allocateBuffer(bytes: number): RegisteredBuffer {
    return this.#pool.allocate(bytes);
  }

  /** Counters of the data path; see `Controller.counters`. */
  counters(): Readonly<Record<string, number>> {
    return this.#lease.runtime.door.counters();
  }

  /** Resolves when the path is live. Rejects when it is not at once: unless it was refused, it is tried on. */
  addPath(spec: PathSpec): Promise<void> {
    this.#checkOpen();
    return this.#startPath(spec, (failed) => {
      this.#forget(failed);
    });
  }

  /** Commands that are there may end first; the other paths take what comes. */
  async removePath(endpoint: string): Promise<void> {
    const path = this.#path(endpoint);
    await this.#drainAndRemove(path);
    this.#forget(path);
  }

  /** Ends the association of a live path, which is then connected again; the other paths take its I/O. */
  resetPath(endpoint: string): void {
    const path = this.#path(endpoint);
    if (path.state !== 'live') {
      throw new NvmeofError('PATH_NOT_LIVE', `path ${endpoint} is ${path.state}, not live`);
    }
    path.reset('reset by the user');
  }

  setPolicy(policy: PathPolicy): void {
    this.#configure({ ...this.#queueOptions, policy: policyOf(policy) });
  }

  /** As `Controller.attach`; what is attached outlives any path. */
  attach(nsid: number): Attachment {
    this.#checkOpen();
    const head = this.#head(nsid);
    const first = this.#first;
    if (!first) throw new DisconnectedError(`${this.nqn} was never connected`);
    const attachment = new Attachment({
      door: this.#lease.runtime.door,
      description: `${this.nqn} namespace ${nsid}`,
      queues: head.queueIds,
      depth: this.options.common.depth - 1,
      commandTimeoutMs: 0,
      geometry: geometryOf(head.namespace, first.data, first.limits),
      onDetached: (ended) => this.#attachments.delete(ended),
    });
    this.#attachments.add(attachment);
    return attachment;
  }

  /** Native load over the paths. */
  bench(options: ControllerBenchOptions): Promise<BenchResult> {
    this.#checkOpen();
    const head = this.#head(options.nsid);
    return this.#lease.runtime.door.bench({
      ...options,
      lbaBytes: head.namespace.lbaSize,
      commandTimeoutMs: 0,
      queues: head.queueIds,
    });
  }

  /** Every path in good order. I/O that waits for a path ends with an error. */
  disconnect(): Promise<void> {
    this.#closing ??= this.#disconnect();
    return this.#closing;
  }

  async #disconnect(): Promise<void> {
    const discovery = this.discovery?.close();
    this.#lostWrites.close();
    const heads = [...this.#heads.values()];
    for (const head of heads) head.setFailing(true);
    const detached = Promise.all([...this.#attachments].map((each) => each.detach()));
    await Promise.all([...this.#paths.values()].map((path) => this.#drainAndRemove(path)));
    await Promise.all([...heads.map((head) => head.close()), ...this.#closingHeads]);
    await detached;
    await discovery;
    this.#pool.close();
    this.#lease.release();
  }

  // ---- What paths tell

  nextIncarnation(): number {
    this.#incarnations += 1;
    return this.#incarnations;
  }

  admit(path: Path, controller: Controller): void {
    const { data, transferLimits } = controller;
    if (!transferLimits)
      throw new PathRefusedError(`path ${path.endpoint}: it is a discovery controller`);
    const first = this.#first ?? { data, limits: transferLimits };
    const others = [...this.#paths.values()].filter((each) => each !== path && each.controller);
    const problem = admissionProblem(controller, first, others);
    if (problem !== undefined) throw new PathRefusedError(`path ${path.endpoint}: ${problem}`);
    this.#first = others.length > 0 ? first : { data, limits: first.limits };
  }

  changed(path: Path): void {
    const groups = path.anaGroups;
    if (path.state === 'live') {
      this.#configureDelays(path);
      if (!sameGroups(this.#shownGroups.get(path) ?? [], groups)) {
        this.#shownGroups.set(path, groups);
        this.emit('anaChange', path.endpoint, groups);
      }
    }
    this.#reconcile(path);
  }

  lost(path: Path, controller: Controller): void {
    for (const head of this.#heads.values()) head.lost(path);
    this.#lostWrites.begin(path, controller);
  }

  moved(path: Path, from: PathState, reason: string): void {
    if (path.state === 'live') this.#lostWrites.peerCame();
    this.emit('pathState', { endpoint: path.endpoint, from, to: path.state, reason });
  }

  warn(_path: Path, error: Error): void {
    this.emit('warning', error);
  }

  // ---- Paths

  async #startPath(spec: PathSpec, onFailed?: (path: Path) => void): Promise<void> {
    const resolved = this.options.resolvePath(spec);
    const twin = [...this.#paths.values()].find(({ endpoint }) => endpoint === resolved.endpoint);
    if (twin) {
      throw new NvmeofError(
        'PATH_EXISTS',
        `there is a path ${twin.endpoint} already; it is ${twin.state}`,
        {
          object: twin.endpoint,
        },
      );
    }
    const index = Array.from({ length: PATHS_MAX }, (_, each) => each).find(
      (each) => !this.#paths.has(each),
    );
    if (index === undefined) throw new ArgumentError(`a subsystem has at most ${PATHS_MAX} paths`);
    const path = new Path(this, index, resolved);
    this.#paths.set(index, path);
    try {
      await path.start(onFailed ? undefined : this.options.signal);
    } catch (error) {
      if (path.state === 'failed') onFailed?.(path);
      throw error;
    }
  }

  #drainAndRemove(path: Path): Promise<void> {
    return path.remove(() =>
      Promise.all([...this.#heads.values()].map((head) => head.drain(path))),
    );
  }

  #forget(path: Path): void {
    if (this.#paths.get(path.index) !== path) return;
    this.#paths.delete(path.index);
    this.#shownGroups.delete(path);
    for (const head of this.#heads.values()) {
      head.forget(path);
      this.#conflicts.delete(`${path.index}/${head.nsid}`);
    }
    this.#reconcile();
  }

  #livePaths(lost: Path): Controller[] {
    const live = [...this.#paths.values()].filter((path) => path.state === 'live');
    live.sort((a, b) => Number(a === lost) - Number(b === lost));
    return live.flatMap(({ controller }) => controller ?? []);
  }

  #configureDelays(path: Path): void {
    const data = path.controller?.data;
    if (!data) return;
    const told = [data.crdt1, data.crdt2, data.crdt3].map((units) => units * RETRY_DELAY_UNIT_MS);
    const now = this.#queueOptions.retryDelaysMs;
    const [a = 0, b = 0, c = 0] = told.map((ms, index) => Math.max(ms, now[index] ?? 0));
    if (a === now[0] && b === now[1] && c === now[2]) return;
    this.#configure({ ...this.#queueOptions, retryDelaysMs: [a, b, c] });
  }

  #configure(options: PathQueueOptions): void {
    this.#queueOptions = options;
    for (const head of this.#heads.values()) head.configure(options);
  }

  // ---- Namespaces

  /** `changed` anew, and what other paths could not serve before: it may be so no more. */
  #reconcile(changed?: Path): void {
    if (this.#closing) return;
    const paths = [...this.#paths.values()];
    // First, so that a path that came back has its namespaces again before others may replace them.
    if (changed) this.#addHeads(changed);
    for (const head of this.#heads.values()) if (changed) this.#updateHead(head, changed);
    for (const path of paths) if (path !== changed) this.#addHeads(path);
    for (const head of this.#heads.values()) {
      for (const path of paths) {
        if (path !== changed && !head.serves(path)) this.#updateHead(head, path);
      }
    }
    this.#evaluate();
  }

  #addHeads(path: Path): void {
    const added: number[] = [];
    if (path.state !== 'live') return;
    for (const namespace of path.controller?.namespaces ?? []) {
      const known = this.#heads.get(namespace.nsid);
      if (known && !this.#replaces(known, path, namespace)) continue;
      // What has its NSID but is another namespace replaces it when no path serves that any more.
      const head = new NamespaceHead(this.#headContext(), namespace.facts);
      head.tell(path, namespace.facts);
      this.#heads.set(namespace.nsid, head);
      added.push(namespace.nsid);
      this.#updateHead(head, path);
    }
    if (added.length > 0) this.emit('namespacesChanged', { added, removed: [], changed: [] });
  }

  #updateHead(head: NamespaceHead, path: Path): void {
    const controller = path.state === 'live' ? path.controller : undefined;
    const namespace = controller?.namespaces.find(({ nsid }) => nsid === head.nsid);
    if (!controller) return;
    const joins = namespace !== undefined && this.#joins(head, path, namespace);
    head.update(path, controller, joins ? namespace.facts : undefined);
  }

  /** A path that served it is lost, and may come back with it. */
  #mayComeBack(head: NamespaceHead): boolean {
    const lost = [...this.#paths.values()].filter(({ state }) => state === 'reconnecting');
    return lost.some((path) => head.served(path));
  }

  #replaces(head: NamespaceHead, path: Path, namespace: Namespace): boolean {
    const other = otherIdentity(head.facts, namespace.facts);
    if (other === undefined || !head.alone(path)) return false;
    if (!head.served(path) && this.#mayComeBack(head)) return false;
    this.emit(
      'warning',
      new Error(`namespace ${head.nsid} is another one at ${path.endpoint}: ${other}`),
    );
    this.#removeHead(head.nsid);
    this.emit('namespacesChanged', { added: [], removed: [head.nsid], changed: [] });
    return true;
  }

  /** A path that has served the namespace says what is true of it now; a new one must agree. */
  #joins(head: NamespaceHead, path: Path, namespace: Namespace): boolean {
    // Alone, it need not be told from others; but only where it is the one that was there before.
    const conflict =
      head.alone(path) && head.served(path)
        ? otherIdentity(head.facts, namespace.facts)
        : joinProblem(head.facts, namespace.facts, !head.serves(path));
    const key = `${path.index}/${head.nsid}`;
    if (conflict !== undefined) {
      if (this.#conflicts.get(key) !== conflict) {
        this.#conflicts.set(key, conflict);
        this.emit(
          'warning',
          new Error(`path ${path.endpoint} is not used for namespace ${head.nsid}: ${conflict}`),
        );
      }
      return false;
    }
    this.#conflicts.delete(key);
    if (head.tell(path, namespace.facts)) {
      this.emit('namespacesChanged', { added: [], removed: [], changed: [head.nsid] });
    }
    return true;
  }

  #headContext(): HeadContext {
    const { runtime, reactors, cores } = this.#lease;
    const limits = this.#first?.limits;
    if (!limits) throw new Error('no controller was admitted');
    return {
      runtime,
      clock: this.environment.clock,
      reactors,
      cores,
      numaDistance: this.environment.numaDistance,
      nqn: this.nqn,
      pool: this.#pool,
      limits,
      paths: this.#queueOptions,
      onPathEvent: (event) => {
        this.#onPathEvent(event);
      },
    };
  }

  #onPathEvent(event: PathEvent): void {
    const path = this.#paths.get(event.path);
    // What was told of an earlier association says nothing of this one.
    if (path?.incarnation !== event.incarnation) return;
    if (event.kind === 'pathOverdue') {
      path.reset(`a command had no answer in ${this.#queueOptions.ioTimeoutMs} ms`);
      return;
    }
    const type = (event.status >> 8) & 7;
    path.refused(type === STATUS_TYPE_PATH && ANA_CODES.has(event.status & 0xff));
  }

  /** After each change: whether I/O that finds no path shall wait or fail, and which namespaces are no more. */
  #evaluate(): void {
    if (this.#closing) return;
    const paths = [...this.#paths.values()];
    const removed: number[] = [];
    const without = ({ state, controller }: Path, nsid: number): boolean =>
      state === 'live' && controller?.namespaces.some((each) => each.nsid === nsid) === false;
    for (const head of this.#heads.values()) {
      const live = paths.filter(({ state }) => state === 'live');
      const gone = live.length > 0 && live.every((path) => without(path, head.nsid));
      if (gone && !this.#mayComeBack(head)) {
        removed.push(head.nsid);
        continue;
      }
      const failing = paths.every((path) => path.hopeless || without(path, head.nsid));
      if (head.setFailing(failing)) this.emit('failing', head.nsid, failing);
    }
    for (const nsid of removed) this.#removeHead(nsid);
    if (removed.length > 0) this.emit('namespacesChanged', { added: [], removed, changed: [] });
  }

  #removeHead(nsid: number): void {
    const head = this.#heads.get(nsid);
    if (!head) return;
    this.#heads.delete(nsid);
    head.namespace.update(undefined);
    const closing = head.close().then(() => void this.#closingHeads.delete(closing));
    this.#closingHeads.add(closing);
  }

  #path(endpoint: string): Path {
    const path = [...this.#paths.values()].find((each) => each.endpoint === endpoint);
    if (path) return path;
    const known = this.paths.map((each) => each.endpoint).join(', ') || 'none';
    throw new ArgumentError(`there is no path ${endpoint}; there are ${known}`);
  }

  #head(nsid: number): NamespaceHead {
    const head = this.#heads.get(nsid);
    if (head) return head;
    const known = this.namespaces.map((each) => each.nsid).join(', ') || 'none';
    throw new ArgumentError(`the subsystem has no namespace ${nsid}; it has ${known}`);
  }

  #checkOpen(): void {
    if (this.#closing) throw new DisconnectedError(`${this.nqn} is disconnected`);
  }
}
