/**
 * A persistent connection to one discovery service: reads its log when it is connected and whenever it says that the log has
 * changed, and connects again when it is lost, for as long as it is wanted. The states, and what moves between them:
 *
 *   connecting ──> live <──> reconnecting
 *        │           │             │
 *        └───────────┴─────────────┴──> closing ──> closed
 *
 * A service that is silent has said nothing: what it answered before stays. Runs on the JavaScript thread.
 */
import { asError } from '../../native/common/errors.ts';
import { StateMachine } from '../../native/common/state-machine.ts';
import type { Moves } from '../../native/common/state-machine.ts';
import { connectIn } from '../connect.ts';
import type { Controller } from '../controller.ts';
import { readDiscoveryLog } from '../discovery.ts';
import type { DiscoveryLog } from '../discovery.ts';
import type { Environment } from '../environment.ts';
import { DisconnectedError } from '../errors.ts';
import type { ConnectOptions } from '../options.ts';
import type { FoundEndpoint } from './discovery-records.ts';
import { Timers, jittered } from './timers.ts';

export type ServiceState = 'connecting' | 'live' | 'reconnecting' | 'closing' | 'closed';

const MOVES: Moves<ServiceState> = {
  connecting: ['live', 'reconnecting', 'closing'],
  live: ['reconnecting', 'closing'],
  reconnecting: ['live', 'closing'],
  closing: ['closed'],
  closed: [],
};

/** From one reading to the next, however many events come. */
const READ_GAP_MS = 100;
/** Between readings of a service that offers no events (OAES bit 31 is 0). */
const NO_EVENTS_MS = 30_000;

/** What a service tells whoever follows it. */
export interface ServiceOwner {
  readonly environment: Environment;
  readonly reconnectDelayMs: number;
  /** The whole log, as it stood at one moment. */
  answered(service: DiscoveryService, log: DiscoveryLog): void;
  moved(service: DiscoveryService, from: ServiceState, reason: string): void;
  /** It could not be connected to, or its log could not be read; it is tried again. */
  failed(service: DiscoveryService, error: Error): void;
  warn(service: DiscoveryService, error: Error): void;
}

export class DiscoveryService {
  readonly found: FoundEndpoint;
  readonly #owner: ServiceOwner;
  readonly #connect: ConnectOptions;
  readonly #machine: StateMachine<ServiceState>;
  readonly #timers: Timers<'reconnect' | 'read'>;
  readonly #attempting = new AbortController();
  #controller: Controller | undefined;
  #reason = '';
  #attempt: Promise<void> | undefined;
  #reading = false;
  /** Times that a reading was asked for. */
  #wishes = 0;
  #lastRead = -Infinity;
  #closing: Promise<void> | undefined;

  /** @param connect Options of its association: NQN, keep alive timeout and all. */
  constructor(owner: ServiceOwner, found: FoundEndpoint, connect: ConnectOptions) {
    this.#owner = owner;
    this.#timers = new Timers(owner.environment.clock);
    this.found = found;
    this.#connect = connect;
    this.#machine = new StateMachine(`discovery service ${found.endpoint}`, 'connecting', MOVES);
  }

  get endpoint(): string {
    return this.found.endpoint;
  }

  get state(): ServiceState {
    return this.#machine.state;
  }

  /** Why it is not live, or why its log could not be read; empty when all is well. */
  get reason(): string {
    return this.#reason;
  }

  start(): void {
    this.#attempt = this.#tryToConnect();
  }

  /** In good order; resolves when nothing of it is left. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    this.#move('closing', '');
    this.#timers.cancelAll();
    this.#attempting.abort();
    const controller = this.#controller;
    this.#controller = undefined;
    await this.#attempt;
    await controller?.disconnect();
    this.#move('closed', '');
  }

  // ---- Connecting

  async #tryToConnect(): Promise<void> {
    const { environment, reconnectDelayMs } = this.#owner;
    const began = environment.clock.now();
    try {
      const controller = await connectIn(environment, {
        ...this.#connect,
        signal: this.#attempting.signal,
      });
      if (this.#closing) await controller.disconnect();
      else this.#take(controller);
    } catch (error) {
      if (this.#closing) return;
      this.#notConnected(asError(error));
      this.#armReconnect(Math.max(0, reconnectDelayMs - (environment.clock.now() - began)));
    }
  }

  #take(controller: Controller): void {
    this.#controller = controller;
    controller.once('disconnected', (error) => {
      if (this.#controller === controller) this.#lose(controller, error.message);
    });
    controller.on('discoveryLogChanged', () => {
      if (this.#controller === controller) this.#wantRead();
    });
    controller.on('warning', (error) => {
      this.#owner.warn(this, error);
    });
    if (controller.state !== 'live') {
      this.#controller = undefined;
      throw new DisconnectedError('the association was lost at once');
    }
    this.#move('live', '');
    void this.#read();
  }

  #notConnected(error: Error): void {
    const same = this.#machine.is('reconnecting') && this.#reason === error.message;
    if (this.#machine.is('connecting')) this.#move('reconnecting', error.message);
    this.#reason = error.message;
    if (!same) this.#owner.failed(this, error);
  }

  #lose(controller: Controller, reason: string): void {
    this.#controller = undefined;
    this.#timers.cancel('read');
    this.#move('reconnecting', reason);
    this.#armReconnect(this.#owner.reconnectDelayMs);
    // Not disconnect(): what is lost cannot be shut down in good order.
    void controller.abandon();
  }

  #armReconnect(delayMs: number): void {
    this.#timers.arm('reconnect', jittered(delayMs), () => {
      this.#attempt = this.#tryToConnect();
    });
  }

  // ---- Reading

  /** Soon, and once for all that ask meanwhile. A log that could not be read is not read sooner for its events. */
  #wantRead(): void {
    this.#wishes += 1;
    if (this.#reading || this.#timers.has('read')) return;
    if (!this.#controller) return;
    const wait = this.#lastRead + READ_GAP_MS - this.#owner.environment.clock.now();
    if (wait > 0) this.#armRead(wait);
    else void this.#read();
  }

  #armRead(ms: number): void {
    this.#timers.arm('read', ms, () => {
      void this.#read();
    });
  }

  async #read(): Promise<void> {
    const controller = this.#controller;
    if (!controller || this.#reading) return;
    this.#reading = true;
    const wishes = this.#wishes;
    let log: DiscoveryLog | undefined;
    try {
      log = await readDiscoveryLog(controller);
    } catch (error) {
      if (this.#controller === controller && !(error instanceof DisconnectedError)) {
        this.#notRead(asError(error));
      }
    }
    this.#reading = false;
    this.#lastRead = this.#owner.environment.clock.now();
    if (log && this.#controller === controller) this.#answered(controller, log);
    // Also for an association that came while the last one's reading ended.
    if (this.#wishes !== wishes || (this.#controller && this.#controller !== controller))
      this.#wantRead();
  }

  #answered(controller: Controller, log: DiscoveryLog): void {
    this.#reason = '';
    if (!controller.data.oaesDiscovery) this.#armRead(NO_EVENTS_MS);
    this.#owner.answered(this, log);
  }

  #notRead(error: Error): void {
    const same = this.#reason === error.message;
    this.#reason = error.message;
    this.#armRead(this.#owner.reconnectDelayMs);
    if (!same) this.#owner.failed(this, error);
  }

  // ---- Small things

  #move(to: ServiceState, reason: string): void {
    const from = this.#machine.state;
    this.#machine.move(to);
    this.#reason = reason;
    this.#owner.moved(this, from, reason);
  }
}
