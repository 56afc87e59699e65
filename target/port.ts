/**
 * One address and port the target listens on. Takes connection requests, places their queues, and brings each queue's events to
 * where they belong. Devices are shared by ports on one address.
 */
import type { DeviceInfo, DoorEvent, ListenerId, QueueId, ReactorIndex } from '../native/index.ts';
import type { DeviceLease } from '../native/shared-runtime.ts';
import type { ConnectRequestEvent, QueueEvent } from '../native/runtime.ts';
import { formatEndpoint, parseAddress } from '../native/common/address.ts';
import type { Endpoint } from '../native/common/address.ts';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import type { Faults } from '../native/common/faults.ts';
import {
  CM_REJ_CONSUMER,
  CmRejectPrivateData,
  CmRejectStatus,
  CmReplyPrivateData,
} from '../native/wire/fabrics.ts';
import { Sqe } from '../native/wire/sqe.ts';
import { Status } from '../native/wire/status.ts';
import type { PortConfig } from './config.ts';
import { checkConnectionRequest, connect } from './connect.ts';
import type { Admission, Refusal } from './connect.ts';
import type { Context } from './context.ts';
import { queueFields } from './log.ts';
import { execute } from './execute.ts';
import { fail } from './outcome.ts';
import type { Place, Placement } from './placement.ts';
import { TargetQueue } from './queue.ts';

/** Connections at a time whose host has not sent Connect yet. */
export const UNCONNECTED_MAX = 256;
/** Those of I/O queues that name a controller come besides: when many hosts come at once, who is half connected is let finish. */
export const UNCONNECTED_WITH_CONTROLLER_MAX = 1024;

/** A connection whose host sends no Connect is closed after this. */
export const CONNECT_TIMEOUT_MS = 10_000;

type Capsule = Extract<DoorEvent, { readonly kind: 'capsule' }>;

/** Ends of queues that nobody needs to look into, in the words of the transport and of the target engine. */
const EXPECTED_ENDS: ReadonlySet<string> = new Set([
  'the peer disconnected',
  'closed by the target',
]);

export class Port {
  readonly id: number;
  readonly config: PortConfig;
  readonly endpoint: Endpoint;
  readonly #context: Context;
  readonly #placement: Placement;
  readonly #device: DeviceLease;
  /** Those that its queues may be placed on. */
  readonly reactors: readonly ReactorIndex[];
  readonly #listener: ListenerId;
  /** All queues that came in here and are not gone, and where each runs. */
  readonly #queues = new Map<TargetQueue, Place>();
  /** Those without a controller, and some that got theirs since the last connection request. */
  readonly #unconnected = new Set<TargetQueue>();

  constructor(
    context: Context,
    placement: Placement,
    id: number,
    config: PortConfig,
    device: DeviceLease,
    reactors: readonly ReactorIndex[],
  ) {
    this.#context = context;
    this.#placement = placement;
    this.id = id;
    this.config = config;
    this.endpoint = { address: parseAddress(config.address), port: config.port };
    this.#device = device;
    this.reactors = reactors;
    const { runtime } = context;
    try {
      this.#listener = runtime.door.listen(device.id, config.port);
    } catch (error) {
      device.release();
      throw new NvmeofError(
        'LISTEN_FAILED',
        `cannot listen on ${formatEndpoint(this.endpoint)}: ${messageOf(error)}`,
        { object: formatEndpoint(this.endpoint), cause: error },
      );
    }
    runtime.handleListener(this.#listener, (event) => {
      this.#connectRequest(event);
    });
  }

  get device(): DeviceInfo {
    return this.#device.info;
  }

  injectFaults(faults: Faults): void {
    this.#device.setFaults(faults);
  }

  /** No new connections; those there are stay. */
  unlisten(): void {
    this.#context.runtime.handleListener(this.#listener, undefined);
    this.#context.runtime.door.unlisten(this.#listener);
  }

  /** Ends every association and connection of this port, and gives the device back. */
  async close(reason: string): Promise<void> {
    const queues = [...this.#queues.keys()];
    const controllers = new Set(queues.flatMap(({ controller }) => controller ?? []));
    await Promise.all([...controllers].map((controller) => controller.close(reason)));
    for (const queue of queues) queue.close();
    await Promise.all(queues.map(({ closed }) => closed));
    this.#device.release();
  }

  #connectRequest(event: ConnectRequestEvent): void {
    const admission = this.#admit(event);
    if (!admission.ok) {
      this.#refuse(event, admission);
      return;
    }
    try {
      this.#accept(event, admission);
    } catch (error) {
      // The host may have given up meanwhile.
      this.#context.log.warn({ peer: event.peer, error: messageOf(error) }, 'accept failed');
    }
  }

  #admit(event: ConnectRequestEvent): Admission | Refusal {
    for (const queue of this.#unconnected) {
      if (queue.controller) this.#unconnected.delete(queue);
    }
    const admission = checkConnectionRequest(event, this.config, (cntlid) =>
      [...this.#context.subsystems.values()].some(({ controllers }) => controllers.has(cntlid)),
    );
    if (!admission.ok) return admission;
    const most = admission.namesController ? UNCONNECTED_WITH_CONTROLLER_MAX : UNCONNECTED_MAX;
    if (this.#unconnected.size < most) return admission;
    return { ok: false, status: CmRejectStatus.noResources, reason: 'too many wait for Connect' };
  }

  #refuse({ connection, peer }: ConnectRequestEvent, { status: sts, reason }: Refusal): void {
    const data = CmRejectPrivateData.encode({ sts });
    this.#context.runtime.door.reject(connection, CM_REJ_CONSUMER, data);
    this.#context.log.warn({ peer, sts }, `connection refused: ${reason}`);
    this.#context.emit('refused', peer, reason);
  }

  #accept(event: ConnectRequestEvent, { qid, depth }: Admission): void {
    const { door } = this.#context.runtime;
    const admin = qid === 0;
    const place = this.#placement.place(admin, this.reactors);
    const { reactor } = place;
    let id: QueueId;
    try {
      id = door.accept(event.connection, {
        reactor,
        depth,
        // No in-capsule data on the admin queue (NVMe RDMA Transport 1.1).
        inCapsuleBytes: admin ? 0 : this.config.inCapsuleBytes,
        responderResources: 0,
        initiatorDepth: Math.min(event.responderResources, this.#device.info.maxInitiatorDepth),
        privateData: CmReplyPrivateData.encode({ crqsize: depth }),
      });
    } catch (error) {
      place.release();
      throw error;
    }
    const arrival = {
      port: this.config,
      portId: this.id,
      endpoint: formatEndpoint(this.endpoint),
      local: event.local,
      peer: event.peer,
      reactor,
    };
    this.#watch(new TargetQueue(door, id, arrival, qid, depth), place);
  }

  #watch(queue: TargetQueue, place: Place): void {
    const { runtime, clock } = this.#context;
    this.#queues.set(queue, place);
    this.#unconnected.add(queue);
    const timer = clock.after(CONNECT_TIMEOUT_MS, () => {
      if (queue.state === 'unconnected') queue.close();
    });
    runtime.handleQueue(queue.id, (event) => {
      this.#queueEvent(queue, event);
    });
    void queue.closed.then(() => {
      timer.cancel();
    });
  }

  #queueEvent(queue: TargetQueue, event: QueueEvent): void {
    if (event.kind === 'capsule') this.#capsule(queue, event);
    else if (event.kind === 'ioError') {
      queue.controller?.errorLog.add({
        sqid: queue.cmQid,
        sqe: event.sqe,
        status: event.status,
        parameter: event.parameter,
      });
    } else if (event.kind === 'queueQuiet') queue.quieted();
    else if (event.kind === 'queueClosed') this.#ended(queue, event.reason);
    else if (event.kind === 'connectFailed') this.#ended(queue, event.message);
  }

  #capsule(queue: TargetQueue, { tag, sqe, data }: Capsule): void {
    const { controller } = queue;
    if (queue.state === 'unconnected') {
      connect(this.#context, { queue, tag, sqe, data }).catch((error: unknown) => {
        this.#context.log.error({ error: messageOf(error) }, 'Connect failed');
        queue.close();
      });
    } else if (controller && (queue.state === 'admin' || queue.state === 'io')) {
      execute({ queue, controller, tag, sqe, data, header: Sqe.decode(sqe) });
    } else if (queue.state === 'connecting') {
      queue.complete(tag, fail(Status.commandSequence, 0, 'Connect is not answered yet'));
    }
  }

  #ended(queue: TargetQueue, reason: string): void {
    const { controller, cmQid } = queue;
    queue.ended();
    this.#queues.get(queue)?.release();
    this.#queues.delete(queue);
    this.#unconnected.delete(queue);
    if (!controller) return;
    controller.queueClosed(queue, reason);
    if (cmQid === 0) return;
    const summary = controller.queueSummary(queue);
    const level = EXPECTED_ENDS.has(reason) ? 'debug' : 'warn';
    this.#context.log[level]({ ...queueFields(summary), reason }, 'I/O queue closed');
    this.#context.emit('queueClosed', summary, reason);
  }
}
