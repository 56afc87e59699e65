/**
 * Follows discovery services over persistent connections, and keeps the paths of a subsystem as their logs list them. A path
 * is there as long as the last answer of any service lists it: a service that is lost, or sends nonsense, takes nothing
 * away. Runs on the JavaScript thread.
 */
import { EventEmitter } from 'node:events';
import type { DiscoveryLog } from '../discovery.ts';
import { DISCOVERY_NQN } from '../../native/wire/fabrics.ts';
import { ArgumentError, ConnectError } from '../errors.ts';
import { resolveOptions } from '../options.ts';
import type { ConnectOptions } from '../options.ts';
import type { Environment } from '../environment.ts';
import { DiscoveredPathSet } from './discovered-path-set.ts';
import type { PathSink } from './discovered-path-set.ts';
import { answerOf, endpointOf } from './discovery-records.ts';
import type { FoundEndpoint, ServiceAnswer } from './discovery-records.ts';
import { SERVICES_MAX, reachServices } from './discovery-referrals.ts';
import type { ReachedService } from './discovery-referrals.ts';
import { DiscoveryService } from './discovery-service.ts';
import type { ServiceOwner, ServiceState } from './discovery-service.ts';
import type { ResolvedMultipath } from './options.ts';

export interface DiscoverySpec {
  /** Numeric IPv4 or IPv6 address of a discovery service. */
  readonly address: string;
  /** Default 4420. */
  readonly port?: number;
  /** Our address on the way to the service; paths have their own. */
  readonly sourceAddress?: string;
  /** Keep alive timeout of the connection, and of those to services it refers to. Default 30000. */
  readonly keepAliveMs?: number;
}

/** A discovery service as it is shown to people and programs. */
export interface ServiceView {
  readonly endpoint: string;
  readonly state: ServiceState;
  /** Why it is not live, or why its log could not be read; empty when all is well. */
  readonly reason: string;
  /** The service whose log refers to it; undefined: named by the user. */
  readonly referredBy: string | undefined;
  /** GENCTR of its last answer; undefined: none yet. */
  readonly generation: bigint | undefined;
  /** All records of its last answer. */
  readonly records: number;
  /** What its last answer lists of the subsystem, ADDRESS:PORT. */
  readonly paths: readonly string[];
}

export interface ServiceChange {
  readonly endpoint: string;
  readonly from: ServiceState;
  readonly to: ServiceState;
  readonly reason: string;
}

export interface DiscoveryEvents {
  serviceState: [change: ServiceChange];
  /** A service answered with its log. */
  logRead: [service: ServiceView];
  /** Discovery adds this path; `pathState` of the subsystem tells what becomes of it. */
  pathAdded: [endpoint: string];
  /** Discovery has removed this path. */
  pathRemoved: [endpoint: string];
  warning: [error: Error];
}

/** What all services have in common: options of the subsystem. */
export type DiscoveryContext = Pick<ResolvedMultipath, 'nqn' | 'reconnectDelayMs' | 'resolvePath'>;

interface Followed {
  readonly service: DiscoveryService;
  readonly keepAliveMs: number;
  referredBy: string | undefined;
  answer: ServiceAnswer | undefined;
  /** Its next answer comes over another connection: a service that was started again counts generations anew. */
  fresh: boolean;
  /** Why it has not answered yet. */
  failure: Error | undefined;
}

const KEEP_ALIVE_MS = 30_000;

export class DiscoveredPaths extends EventEmitter<DiscoveryEvents> implements ServiceOwner {
  readonly environment: Environment;
  readonly #context: DiscoveryContext;
  readonly #named: ReadonlyMap<string, ConnectOptions>;
  readonly #followed = new Map<string, Followed>();
  readonly #leaving = new Set<Promise<void>>();
  /** Problems that were told already: each once, until it is gone. */
  readonly #told = new Map<string, ReadonlySet<string>>();
  readonly #found: Promise<readonly FoundEndpoint[]>;
  #resolveFound: (found: readonly FoundEndpoint[]) => void = () => undefined;
  #rejectFound: (error: Error) => void = () => undefined;
  #paths: DiscoveredPathSet | undefined;
  #closing: Promise<void> | undefined;

  constructor(
    environment: Environment,
    context: DiscoveryContext,
    services: readonly DiscoverySpec[],
  ) {
    super();
    this.environment = environment;
    this.#context = context;
    if (services.length === 0 || services.length > SERVICES_MAX) {
      throw new ArgumentError(
        `discover names 1 to ${SERVICES_MAX} discovery services, not ${services.length}`,
      );
    }
    this.#named = this.#resolve(services);
    this.#found = new Promise((resolve, reject) => {
      this.#resolveFound = resolve;
      this.#rejectFound = reject;
    });
    // Only those who ask for it want to hear of a failure.
    this.#found.catch(() => undefined);
    this.#reach();
  }

  get reconnectDelayMs(): number {
    return this.#context.reconnectDelayMs;
  }

  /** Named ones first. */
  get services(): readonly ServiceView[] {
    return [...this.#followed.values()].map((each) => this.#view(each));
  }

  /** Where the services say that the subsystem is. */
  get endpoints(): readonly FoundEndpoint[] {
    return [...this.#union().values()];
  }

  /** Resolves when some service lists the subsystem; rejects when all have answered or failed, and none does. */
  found(): Promise<readonly FoundEndpoint[]> {
    return this.#found;
  }

  /** @param ours Endpoints among the sink's paths that discovery found. */
  follow(sink: PathSink, ours: readonly FoundEndpoint[] = []): void {
    if (this.#closing) return;
    this.#paths = new DiscoveredPathSet(
      sink,
      {
        added: (endpoint) => this.emit('pathAdded', endpoint),
        removed: (endpoint) => this.emit('pathRemoved', endpoint),
        warn: (error) => this.emit('warning', error),
      },
      ours,
    );
    // A path that nobody lists is not removed before somebody has answered.
    if (this.#answered) this.#paths.set(this.#union(), false);
  }

  get closed(): boolean {
    return this.#closing !== undefined;
  }

  /** Follows no more; the paths stay. Resolves when no connection to a service is left. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#paths?.close();
    const services = [...this.#followed.values()];
    await Promise.all([...services.map(({ service }) => service.close()), ...this.#leaving]);
  }

  // ---- What services tell

  answered(service: DiscoveryService, log: DiscoveryLog): void {
    const followed = this.#followed.get(service.endpoint);
    if (this.#closing || followed?.service !== service) return;
    const { target } = resolveOptions(this.#connectTo(service.found, followed.keepAliveMs));
    const answer = answerOf(log, this.#context.nqn, target);
    const changed = followed.fresh || followed.answer?.generation !== answer.generation;
    followed.answer = answer;
    followed.fresh = false;
    this.#tell(service.endpoint, answer.problems);
    this.emit('logRead', this.#view(followed));
    this.#reach();
    this.#decide();
    this.#paths?.set(this.#union(), changed);
  }

  moved(service: DiscoveryService, from: ServiceState, reason: string): void {
    const { endpoint, state: to } = service;
    const followed = this.#followed.get(endpoint);
    if (followed?.service === service && to === 'live') followed.fresh = true;
    this.emit('serviceState', { endpoint, from, to, reason });
  }

  failed(service: DiscoveryService, error: Error): void {
    const followed = this.#followed.get(service.endpoint);
    if (this.#closing || followed?.service !== service) return;
    followed.failure = error;
    this.warn(service, error);
    this.#decide();
  }

  warn({ endpoint }: DiscoveryService, error: Error): void {
    const context = { cause: error };
    this.emit('warning', new Error(`discovery service ${endpoint}: ${error.message}`, context));
  }

  // ---- Services

  #resolve(services: readonly DiscoverySpec[]): ReadonlyMap<string, ConnectOptions> {
    const named = new Map<string, ConnectOptions>();
    for (const { keepAliveMs = KEEP_ALIVE_MS, ...spec } of services) {
      const { connect } = this.#context.resolvePath(spec);
      const options = { ...connect, nqn: DISCOVERY_NQN, keepAliveMs };
      const { target, port, keepAliveMs: timeout } = resolveOptions(options);
      if (timeout === 0) {
        throw new ArgumentError(
          'keepAliveMs of a discovery service must not be 0: its connection is to stay',
        );
      }
      const { endpoint } = endpointOf(target, port);
      if (named.has(endpoint)) throw new ArgumentError(`discover names ${endpoint} twice`);
      named.set(endpoint, options);
    }
    return named;
  }

  #connectTo({ endpoint, address, port }: FoundEndpoint, keepAliveMs: number): ConnectOptions {
    const named = this.#named.get(endpoint);
    if (named) return named;
    const { connect } = this.#context.resolvePath({ address, port });
    return { ...connect, nqn: DISCOVERY_NQN, keepAliveMs };
  }

  /** Starts services that are referred to now, and ends those that no answer refers to any more. */
  #reach(): void {
    const named = [...this.#named.values()].map((options) => {
      const { target, port } = resolveOptions(options);
      return endpointOf(target, port);
    });
    const { services, problems } = reachServices(
      named,
      (endpoint) => this.#followed.get(endpoint)?.answer?.referrals ?? [],
      (endpoint) => this.#followed.has(endpoint),
    );
    this.#tell('referrals', problems);
    for (const [endpoint, followed] of this.#followed) {
      if (!services.has(endpoint)) this.#leave(endpoint, followed);
    }
    for (const [endpoint, reached] of services) {
      const followed = this.#followed.get(endpoint);
      if (followed) followed.referredBy = reached.referredBy;
      else this.#start(reached);
    }
  }

  #start({ found, referredBy }: ReachedService): void {
    const named = this.#named.get(found.endpoint);
    const referring = referredBy === undefined ? undefined : this.#followed.get(referredBy);
    const keepAliveMs = named?.keepAliveMs ?? referring?.keepAliveMs ?? KEEP_ALIVE_MS;
    const service = new DiscoveryService(this, found, this.#connectTo(found, keepAliveMs));
    this.#followed.set(found.endpoint, {
      service,
      keepAliveMs,
      referredBy,
      answer: undefined,
      fresh: true,
      failure: undefined,
    });
    service.start();
  }

  #leave(endpoint: string, { service }: Followed): void {
    this.#followed.delete(endpoint);
    this.#told.delete(endpoint);
    const left = service.close();
    this.#leaving.add(left);
    void left.finally(() => this.#leaving.delete(left));
  }

  // ---- What they list

  get #answered(): boolean {
    return [...this.#followed.values()].some(({ answer }) => answer !== undefined);
  }

  #union(): ReadonlyMap<string, FoundEndpoint> {
    const all = [...this.#followed.values()].flatMap(({ answer }) => answer?.paths ?? []);
    return new Map(all.map((found) => [found.endpoint, found]));
  }

  #decide(): void {
    const found = this.endpoints;
    const followed = [...this.#followed.values()];
    if (found.length > 0) this.#resolveFound(found);
    else if (followed.every(({ answer, failure }) => answer ?? failure)) {
      this.#rejectFound(this.#nothingFound(followed));
    }
  }

  #nothingFound(followed: readonly Followed[]): Error {
    const silent = followed.find(({ answer }) => answer === undefined)?.failure;
    if (silent) return silent;
    const asked = followed.map(({ service }) => service.endpoint).join(', ');
    const { nqn } = this.#context;
    return new ConnectError(
      'CONNECT_UNKNOWN_NQN',
      `discovery at ${asked} lists no RDMA path to subsystem "${nqn}" for this host; ` +
        `nvmeof discover shows what is listed`,
      { object: nqn },
    );
  }

  // ---- Small things

  #view({ service, referredBy, answer }: Followed): ServiceView {
    return {
      endpoint: service.endpoint,
      state: service.state,
      reason: service.reason,
      referredBy,
      generation: answer?.generation,
      records: answer?.records ?? 0,
      paths: answer?.paths.map(({ endpoint }) => endpoint) ?? [],
    };
  }

  #tell(about: string, problems: readonly string[]): void {
    const before = this.#told.get(about);
    this.#told.set(about, new Set(problems));
    for (const problem of problems.filter((each) => before?.has(each) !== true)) {
      const where = about === 'referrals' ? '' : `discovery service ${about}: `;
      this.emit('warning', new Error(`${where}${problem}`));
    }
  }
}
