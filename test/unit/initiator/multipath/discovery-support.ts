/** Discovery services behind one fake door, each at an endpoint of its own with a log of its own; and a sink of paths. */
import { EventEmitter } from 'node:events';
import { DiscoveredPaths } from '../../../../initiator/multipath/discovered-paths.ts';
import type { DiscoverySpec } from '../../../../initiator/multipath/discovered-paths.ts';
import type { PathSink } from '../../../../initiator/multipath/discovered-path-set.ts';
import type { PathChange, PathView } from '../../../../initiator/multipath/events.ts';
import { resolveMultipath } from '../../../../initiator/multipath/options.ts';
import type { PathSpec } from '../../../../initiator/multipath/options.ts';
import type { PathState } from '../../../../initiator/multipath/path.ts';
import { formatEndpoint, parseAddress } from '../../../../native/common/address.ts';
import type { QueueId } from '../../../../native/index.ts';
import { DISCOVERY_NQN } from '../../../../native/wire/fabrics.ts';
import { DiscoveryLogEntry, DiscoveryLogHeader } from '../../../../native/wire/logs.ts';
import { NQN } from '../fake-controller.ts';
import { makeBench, settle } from '../support.ts';
import type { Bench } from '../support.ts';

export const RECONNECT_MS = 1000;
const NOTICE = 2;
const LOG_CHANGED = 0xf0;
const DISCOVERY_LOG = 0x70;

export type Entry = Partial<DiscoveryLogEntry>;

/** Of the wanted subsystem over RDMA, but for what is given. */
export function entry(traddr: string, more: Entry = {}): Entry {
  return {
    trtype: 1,
    adrfam: traddr.includes(':') ? 2 : 1,
    subtype: 2,
    portid: 1,
    cntlid: 0xffff,
    asqsz: 32,
    trsvcid: '4420',
    subnqn: NQN,
    traddr,
    tsasRdmaQptype: 1,
    tsasRdmaPrtype: 4,
    tsasRdmaCms: 1,
    ...more,
  };
}

export function referral(traddr: string, more: Entry = {}): Entry {
  return entry(traddr, { subtype: 1, subnqn: DISCOVERY_NQN, ...more });
}

export function discoveryLog(
  generation: bigint,
  entries: readonly Entry[],
  header: Partial<DiscoveryLogHeader> = {},
): Uint8Array {
  const fields = { genctr: generation, numrec: BigInt(entries.length), ...header };
  const parts = entries.map((each) => DiscoveryLogEntry.encode(each));
  return Uint8Array.from(Buffer.concat([DiscoveryLogHeader.encode(fields), ...parts]));
}

export class FakeServices {
  readonly bench: Bench = makeBench();
  /** By ADDRESS:PORT; an endpoint without a log does not answer. */
  readonly logs = new Map<string, Uint8Array>();
  /** Endpoints that were connected to, in order. */
  readonly connects: string[] = [];
  /** Before each Get Log Page of that endpoint. */
  onRead: (endpoint: string) => void = () => undefined;
  reads = 0;
  #generation = 1n;
  readonly #endpoints = new Map<QueueId, string>();

  constructor() {
    const { door, peer } = this.bench;
    peer.controller = {
      ...peer.controller,
      cntrltype: 2,
      subnqn: DISCOVERY_NQN,
      oaesNamespaceAttribute: false,
      oaesDiscovery: true,
    };
    const establish = door.onConnect;
    door.onConnect = (queue, options) => {
      const address = parseAddress(options.address);
      const endpoint = formatEndpoint({ address, port: options.port });
      this.connects.push(endpoint);
      if (this.logs.has(endpoint)) {
        this.#endpoints.set(queue, endpoint);
        establish?.(queue, options);
      } else {
        // As native does: a queue that never was needs no closing.
        door.queues.delete(queue);
        const nothing = { reason: 0, privateData: new Uint8Array(), message: '' };
        door.emit({ kind: 'connectFailed', queue, failure: 'unreachable', ...nothing });
      }
    };
    peer.hold = (name, { queue }) => {
      const endpoint = this.#endpoints.get(queue) ?? '';
      if (name === 'getLogPage 70') {
        this.reads += 1;
        this.onRead(endpoint);
        peer.logs.set(DISCOVERY_LOG, this.logs.get(endpoint) ?? new Uint8Array(1024));
      }
      return name === 'asyncEventRequest';
    };
  }

  /** From now on the service lists this, in a generation of its own. Tells nobody. */
  list(endpoint: string, entries: readonly Entry[], header?: Partial<DiscoveryLogHeader>): void {
    this.logs.set(endpoint, discoveryLog(this.#generation++, entries, header));
  }

  /** The same, told by an event and read. */
  async change(endpoint: string, entries: readonly Entry[]): Promise<void> {
    this.list(endpoint, entries);
    this.bench.clock.advance(RECONNECT_MS / 2);
    this.tell(endpoint);
    // Read, then removals, then what is added in their place.
    for (let turn = 0; turn < 4; turn += 1) await settle();
  }

  tell(endpoint: string): void {
    this.bench.peer.sendEvent(NOTICE, LOG_CHANGED, DISCOVERY_LOG, this.#queueOf(endpoint));
  }

  /** The connection ends; whether the service can be connected to again is up to its log. */
  async drop(endpoint: string, reason = 'it was killed'): Promise<void> {
    this.bench.peer.dropQueue(this.#queueOf(endpoint), reason);
    await settle();
  }

  async pass(ms: number): Promise<void> {
    this.bench.clock.advance(ms);
    await settle();
  }

  follow(
    services: readonly DiscoverySpec[],
    sink: FakeSink,
  ): { readonly discovery: DiscoveredPaths; readonly warnings: string[] } {
    const first = { address: '127.0.0.1' };
    const options = { nqn: NQN, paths: [first], reconnectDelayMs: RECONNECT_MS };
    const discovery = new DiscoveredPaths(
      this.bench.environment,
      resolveMultipath(options),
      services,
    );
    const warnings: string[] = [];
    discovery.on('warning', ({ message }) => warnings.push(message));
    discovery.follow(sink);
    return { discovery, warnings };
  }

  #queueOf(endpoint: string): QueueId {
    for (const [queue, each] of this.#endpoints) {
      if (each === endpoint && this.bench.door.queues.has(queue)) return queue;
    }
    throw new Error(`nobody is connected to ${endpoint}`);
  }
}

/** Paths in memory; each is live at once unless `states` says other, `refuse` makes an addition fail. */
export class FakeSink extends EventEmitter<{ pathState: [PathChange] }> implements PathSink {
  readonly #states = new Map<string, PathState>();
  readonly calls: string[] = [];
  readonly refuse = new Set<string>();

  get paths(): readonly PathView[] {
    return [...this.#states].map(([endpoint, state]) => ({
      endpoint,
      state,
      reason: '',
      preferred: false,
      cntlid: undefined,
      queues: 0,
      queuesAsked: 0,
      anaGroups: [],
      attempts: 0,
      nextAttemptMs: undefined,
    }));
  }

  get endpoints(): string[] {
    return [...this.#states.keys()];
  }

  /** As the user does it. */
  name(endpoint: string, state: PathState = 'live'): void {
    this.#states.set(endpoint, state);
  }

  move(endpoint: string, to: PathState): void {
    const from = this.#states.get(endpoint) ?? 'connecting';
    this.#states.set(endpoint, to);
    this.emit('pathState', { endpoint, from, to, reason: '' });
  }

  addPath({ address, port = 4420 }: PathSpec): Promise<void> {
    const endpoint = formatEndpoint({ address: parseAddress(address), port });
    this.calls.push(`add ${endpoint}`);
    if (this.refuse.has(endpoint)) return Promise.reject(new Error('another serial number'));
    this.move(endpoint, 'live');
    return Promise.resolve();
  }

  async removePath(endpoint: string): Promise<void> {
    this.calls.push(`remove ${endpoint}`);
    this.move(endpoint, 'removing');
    await settle();
    this.#states.delete(endpoint);
    this.emit('pathState', { endpoint, from: 'removing', to: 'removed', reason: '' });
  }
}
