/**
 * One namespace that several paths lead to: its blocks for whoever reads and writes, and behind it on each reactor a native
 * queue over the paths. Which paths these are is told by the subsystem. Runs on the JavaScript thread.
 */
import type { Clock } from '../../native/common/clock.ts';
import type { PathQueueOptions, QueueId, ReactorIndex } from '../../native/index.ts';
import type { Runtime } from '../../native/runtime.ts';
import type { BufferPool } from '../buffers.ts';
import type { TransferLimits } from '../bring-up.ts';
import type { Controller } from '../controller.ts';
import { DisconnectedError } from '../errors.ts';
import type { NamespaceFacts } from '../namespace-scan.ts';
import { Namespace } from '../namespace.ts';
import { Queue } from '../queue.ts';
import type { PathEvent } from '../queue.ts';
import type { NumaDistance } from './numa.ts';
import type { Path } from './path.ts';
import { rankOf } from './rank.ts';

export interface HeadContext {
  readonly runtime: Runtime;
  readonly clock: Clock;
  readonly reactors: readonly ReactorIndex[];
  /** Of each reactor of the process, by its index. */
  readonly cores: readonly number[];
  readonly numaDistance: NumaDistance;
  readonly nqn: string;
  readonly pool: BufferPool;
  readonly limits: TransferLimits;
  readonly paths: PathQueueOptions;
  readonly onPathEvent: (event: PathEvent) => void;
}

/** The queue of one reactor, and the paths that it has been given: each to a queue of this reactor, or of another. */
interface ReactorQueue {
  readonly reactor: ReactorIndex;
  readonly queue: Queue;
  readonly paths: Map<number, 'here' | 'elsewhere'>;
}

function sameBlocks(a: NamespaceFacts, b: NamespaceFacts): boolean {
  return a.lbaCount === b.lbaCount && a.writeProtected === b.writeProtected;
}

type Fact = string | number | bigint | undefined;

function difference(name: string, ours: Fact, theirs: Fact): string | undefined {
  if (ours === theirs) return undefined;
  return `its ${name} is ${String(theirs ?? 'absent')}, known is ${String(ours ?? 'absent')}`;
}

/** Why what a controller has under this NSID is another namespace; undefined when it is the same. */
export function otherIdentity(ours: NamespaceFacts, theirs: NamespaceFacts): string | undefined {
  return (
    difference('UUID', ours.ids.uuid, theirs.ids.uuid) ??
    difference('NGUID', ours.ids.nguid, theirs.ids.nguid) ??
    difference('EUI64', ours.ids.eui64, theirs.ids.eui64) ??
    difference('block size', ours.lbaSize, theirs.lbaSize)
  );
}

/** Why it cannot be another path to the same blocks. `sameSize` false: the size may just have changed. */
export function joinProblem(
  ours: NamespaceFacts,
  theirs: NamespaceFacts,
  sameSize: boolean,
): string | undefined {
  const other =
    otherIdentity(ours, theirs) ??
    (sameSize ? difference('size in blocks', ours.lbaCount, theirs.lbaCount) : undefined);
  if (other !== undefined) return other;
  const { uuid, nguid, eui64 } = ours.ids;
  if ((uuid ?? nguid ?? eui64) === undefined) {
    return 'it has neither UUID nor NGUID nor EUI64 that would show it to be the same namespace';
  }
  return theirs.data.nmicShared && ours.data.nmicShared
    ? undefined
    : 'it is not shared between controllers (NMIC bit 0)';
}

export class NamespaceHead {
  readonly nsid: number;
  readonly namespace: Namespace;
  readonly #context: HeadContext;
  readonly #queues: readonly ReactorQueue[];
  /** Paths that serve it or did, and what each said of it last. */
  readonly #told = new Map<Path, NamespaceFacts>();
  #next = 0;
  #failing = false;

  constructor(context: HeadContext, facts: NamespaceFacts) {
    this.nsid = facts.nsid;
    this.#context = context;
    this.#queues = context.reactors.map((reactor) => ({
      reactor,
      paths: new Map(),
      queue: Queue.overPaths({
        runtime: context.runtime,
        clock: context.clock,
        reactor,
        paths: context.paths,
        label: `namespace ${facts.nsid} of ${context.nqn}`,
        onDied: () => undefined,
        onPathEvent: context.onPathEvent,
      }),
    }));
    const host = {
      ...context.limits,
      pool: context.pool,
      // What is asked for waits for a path, and a command without an answer costs its path: neither is the caller's to time.
      commandTimeoutMs: 0,
      pickQueue: () => this.#pickQueue(),
    };
    this.namespace = new Namespace(host, facts);
  }

  get facts(): NamespaceFacts {
    return this.namespace.facts;
  }

  /** For attachments and load: of the reactors where controllers granted queues, as the others' commands go by way of these. */
  get queueIds(): readonly QueueId[] {
    const served = this.#queues.filter(hasOwn);
    return (served.length > 0 ? served : this.#queues).map(({ queue }) => queue.id);
  }

  /** Does now, or did in an earlier life: it may come back with these blocks. */
  served(path: Path): boolean {
    return this.#told.has(path);
  }

  /** Takes what a path says of its blocks; true when it says something new. What it says twice may be old. */
  tell(path: Path, facts: NamespaceFacts): boolean {
    const before = this.#told.get(path) ?? this.facts;
    this.#told.set(path, facts);
    if (sameBlocks(before, facts) || sameBlocks(this.facts, facts)) return false;
    this.namespace.update(facts);
    return true;
  }

  forget(path: Path): void {
    this.#told.delete(path);
  }

  serves(path: Path): boolean {
    return this.#queues.some(({ paths }) => paths.has(path.index));
  }

  /** No other path serves it. */
  alone(path: Path): boolean {
    return this.#queues.every(
      ({ paths }) => paths.size === 0 || (paths.size === 1 && paths.has(path.index)),
    );
  }

  /** Tells native what this path is worth; takes it away where it does not serve the namespace any more. */
  update(path: Path, controller: Controller, facts: NamespaceFacts | undefined): void {
    const { door } = this.#context.runtime;
    const group = (facts ?? this.facts).data.anagrpid;
    const rank = rankOf(path.anaState(group), path.preferred);
    const granted = controller.dataQueues;
    for (const [place, { queue, reactor, paths }] of this.#queues.entries()) {
      const own = granted.find((each) => each.reactor === reactor);
      // It granted fewer queues than there are reactors: those without one share the others'.
      const data = own ?? granted[place % granted.length];
      if (data && facts) {
        paths.set(path.index, own ? 'here' : 'elsewhere');
        door.setPath(queue.id, path.index, {
          queue: data.id,
          rank,
          distance: this.#distance(reactor, controller),
          incarnation: path.incarnation,
        });
      } else if (paths.delete(path.index)) {
        void this.#remove(queue, path.index);
      }
    }
  }

  /** Its queues are dead: native has seen that before we did. */
  lost(path: Path): void {
    for (const { paths } of this.#queues) paths.delete(path.index);
  }

  /** Resolves when no command is there any more. */
  async drain(path: Path): Promise<void> {
    await Promise.all(
      this.#queues.map(async ({ queue, paths }) => {
        if (paths.delete(path.index)) await this.#remove(queue, path.index);
      }),
    );
  }

  /** The lost controller does nothing any more: writes that it was sent go again, or (`repeat` false) end with an error. */
  release(path: Path, incarnation: number, repeat: boolean): void {
    const { door } = this.#context.runtime;
    for (const { queue } of this.#queues) {
      door.releasePath(queue.id, path.index, incarnation, repeat);
    }
  }

  /** True: I/O that finds no path fails from now on. */
  setFailing(failing: boolean): boolean {
    if (failing === this.#failing) return false;
    this.#failing = failing;
    const { door } = this.#context.runtime;
    for (const { queue } of this.#queues) door.setPathsFailing(queue.id, failing);
    return true;
  }

  configure(paths: PathQueueOptions): void {
    const { door } = this.#context.runtime;
    for (const { queue } of this.#queues) door.configurePathQueue(queue.id, paths);
  }

  async close(): Promise<void> {
    await Promise.all(this.#queues.map(({ queue }) => queue.close()));
  }

  #distance(reactor: ReactorIndex, controller: Controller): number {
    const { cores, numaDistance } = this.#context;
    const { sourceAddress: address, rdmaDevice } = controller;
    return numaDistance(cores[reactor] ?? -1, { address, rdmaDevice });
  }

  async #remove(queue: Queue, path: number): Promise<void> {
    const { runtime } = this.#context;
    await runtime.operation(runtime.door.removePath(queue.id, path));
  }

  /** Where controllers granted queues, the queue with the fewest commands; of equals the next in turn. */
  #pickQueue(): Queue {
    let best: ReactorQueue | undefined;
    const count = this.#queues.length;
    for (let step = 0; step < count; step += 1) {
      const each = this.#queues[(this.#next + step) % count];
      if (each && (!best || worth(each) < worth(best))) best = each;
    }
    this.#next = (this.#next + 1) % count;
    if (!best) throw new DisconnectedError(`${this.#context.nqn} has no reactor`);
    return best.queue;
  }
}

/** Whether commands leave from this reactor. Asked for each command: makes nothing. */
function hasOwn({ paths }: ReactorQueue): boolean {
  for (const where of paths.values()) {
    if (where === 'here') return true;
  }
  return false;
}

/** Fewer is better. */
function worth(of: ReactorQueue): number {
  return hasOwn(of) ? of.queue.outstanding : Number.MAX_SAFE_INTEGER;
}
