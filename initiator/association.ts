/**
 * One host-controller association: the reactors' lease, the device, and the queues with the Fabrics Connect of each.
 * What is sent on the queues is decided above. The first queue that dies ends the whole association.
 */
import type { Clock } from '../native/common/clock.ts';
import { parseUuid } from '../native/common/uuid.ts';
import type { ReactorIndex } from '../native/index.ts';
import type { DeviceLease, RuntimeLease } from '../native/shared-runtime.ts';
import {
  ADMIN_QUEUE_ENTRIES_MIN,
  CNTLID_DYNAMIC,
  CNTLID_MAX,
  CmRequestPrivateData,
} from '../native/wire/fabrics.ts';
import { fabricsConnect } from './admin.ts';
import { BufferPool } from './buffers.ts';
import { authenticationRequired, connectFailed, connectRefused } from './connect-failure.ts';
import type { ConnectTarget } from './connect-failure.ts';
import type { Environment } from './environment.ts';
import { ConnectError, DisconnectedError } from './errors.ts';
import type { HostIdentity } from './host-identity.ts';
import { hosts } from './host-registry.ts';
import type { ResolvedOptions } from './options.ts';
import { Queue } from './queue.ts';
import type { CommandOptions } from './queue.ts';
import { openSourceDevice } from './source-device.ts';

export interface IoQueueFields {
  readonly qid: number;
  readonly entries: number;
  /** Data bytes that fit a command capsule. */
  readonly inCapsuleBytes: number;
}

export class Association {
  readonly options: ResolvedOptions;
  readonly identity: HostIdentity;
  readonly clock: Clock;
  readonly device: DeviceLease;
  readonly pool: BufferPool;
  readonly target: ConnectTarget;
  readonly lease: RuntimeLease;
  readonly ioQueues: Queue[] = [];
  /** Entries of each I/O queue. */
  ioQueueEntries = 0;
  /** I/O queues that were asked for; the controller may have granted fewer. */
  ioQueuesAsked = 0;
  /** Called once, when a queue died that nobody closed. */
  onLost: ((error: DisconnectedError) => void) | undefined;
  /** Its host may be another one then. */
  readonly #leave: () => void;
  #admin: Queue | undefined;
  #cntlid = CNTLID_DYNAMIC;
  #lost: DisconnectedError | undefined;
  #closing: Promise<void> | undefined;

  private constructor(
    options: ResolvedOptions,
    identity: HostIdentity,
    clock: Clock,
    lease: RuntimeLease,
    device: DeviceLease,
    leave: () => void,
  ) {
    this.options = options;
    this.identity = identity;
    this.clock = clock;
    this.lease = lease;
    this.device = device;
    this.#leave = leave;
    this.pool = new BufferPool(lease.runtime.door, device.id);
    this.target = {
      endpoint: options.endpoint,
      nqn: options.nqn,
      hostNqn: identity.hostNqn,
      timeoutMs: options.connectTimeoutMs,
    };
  }

  /** Up to and with the Fabrics Connect of the admin queue. */
  static async open(options: ResolvedOptions, environment: Environment): Promise<Association> {
    const identity = environment.identity(options);
    const leave = hosts.take(identity);
    let lease: RuntimeLease | undefined;
    let association: Association;
    try {
      lease = environment.acquire({
        ...(options.cores ? { cores: options.cores } : {}),
        pollForever: options.pollForever,
      });
      const device = await openSourceDevice(lease, options, environment.source);
      association = new Association(options, identity, environment.clock, lease, device, leave);
    } catch (error) {
      lease?.release();
      leave();
      throw error;
    }
    try {
      await association.#connectAdmin();
    } catch (error) {
      await association.close();
      throw error;
    }
    return association;
  }

  get admin(): Queue {
    if (!this.#admin) throw new DisconnectedError(`${this.options.nqn} is not connected`);
    return this.#admin;
  }

  get cntlid(): number {
    return this.#cntlid;
  }

  get lost(): DisconnectedError | undefined {
    return this.#lost;
  }

  /** For the commands of the bring-up: a controller that answers Connect answers these, or is given up. */
  get bringUpOptions(): CommandOptions {
    return { timeoutMs: this.options.connectTimeoutMs, signal: this.options.signal };
  }

  reactorOf(qid: number): ReactorIndex {
    const { reactors } = this.lease;
    return reactors[qid === 0 ? 0 : (qid - 1) % reactors.length] ?? 0;
  }

  async connectIo(fields: IoQueueFields): Promise<void> {
    const queue = await this.#openQueue(fields);
    this.ioQueues.push(queue);
    this.ioQueueEntries = fields.entries;
    await this.#fabricsConnect(queue, fields);
  }

  /** I/O queues first, then the admin queue, then memory, device and reactors. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async closeIoQueues(): Promise<void> {
    await Promise.all(this.ioQueues.map((queue) => queue.close()));
  }

  async #close(): Promise<void> {
    await this.closeIoQueues();
    await this.#admin?.close();
    this.pool.close();
    this.device.release();
    this.lease.release();
    this.#leave();
  }

  async #connectAdmin(): Promise<void> {
    const fields = { qid: 0, entries: ADMIN_QUEUE_ENTRIES_MIN, inCapsuleBytes: 0 };
    this.#admin = await this.#openQueue(fields);
    await this.#fabricsConnect(this.#admin, fields);
  }

  async #openQueue(fields: IoQueueFields): Promise<Queue> {
    const { options, device } = this;
    const { qid, entries } = fields;
    const connected = await Queue.connect(
      {
        runtime: this.lease.runtime,
        clock: this.clock,
        device: device.id,
        label: `${qid === 0 ? 'admin queue' : `I/O queue ${qid}`} of ${options.nqn}`,
        connect: {
          reactor: this.reactorOf(qid),
          address: options.targetAddress,
          port: options.port,
          depth: entries,
          inCapsuleBytes: fields.inCapsuleBytes,
          // The controller reads and writes our memory; we never read its.
          responderResources: device.info.maxResponderResources,
          initiatorDepth: 0,
          privateData: CmRequestPrivateData.encode({
            qid,
            hrqsize: entries,
            hsqsize: entries - 1,
            cntlid: qid === 0 ? 0 : this.#cntlid,
          }),
          timeoutMs: options.connectTimeoutMs,
          // Requests for events, on the admin queue, wait for ever.
          probes: qid !== 0,
        },
        onDied: (error) => {
          this.#died(error);
        },
      },
      options.signal,
    );
    if (connected.queue) return connected.queue;
    throw connectFailed(connected.event, this.target);
  }

  async #fabricsConnect(queue: Queue, { qid, entries }: IoQueueFields): Promise<void> {
    const { options, identity, target } = this;
    const fields = {
      qid,
      entries,
      keepAliveMs: options.keepAliveMs,
      cntlid: this.#cntlid,
      hostId: parseUuid(identity.hostId),
      hostNqn: identity.hostNqn,
      subsystemNqn: options.nqn,
    };
    const result = await fabricsConnect(queue, fields, this.bringUpOptions).catch(
      (error: unknown) => {
        throw connectRefused(error, target);
      },
    );
    if (result.atr || result.ascr) throw authenticationRequired(target);
    if (qid !== 0) return;
    if (result.cntlid === 0 || result.cntlid > CNTLID_MAX) {
      throw new ConnectError(
        'CONNECT_UNUSABLE_CONTROLLER',
        `${target.endpoint} answers Connect with the invalid controller id ${result.cntlid}`,
        { object: 'CNTLID' },
      );
    }
    this.#cntlid = result.cntlid;
  }

  #died(error: DisconnectedError): void {
    if (this.#lost || this.#closing) return;
    this.#lost = error;
    this.onLost?.(error);
  }
}
