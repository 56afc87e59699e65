/**
 * How a host becomes attached: the checks of the connection request (RDMA private data), and the first command of every queue, which
 * must be Connect. Refusals say which byte was wrong (NVMe Base 2.1 section 6.3; NVMe RDMA Transport 1.1 section 3.3).
 */
import type { ConnectRequestEvent } from '../native/runtime.ts';
import type { Tag } from '../native/index.ts';
import { within } from '../native/common/clock.ts';
import { NQN_FIELD_BYTES, readNqnField } from '../native/common/nqn.ts';
import {
  ADMIN_QUEUE_ENTRIES_MIN,
  CM_PRIVATE_DATA_BYTES,
  CNTLID_DYNAMIC,
  CONNECT_DATA_BYTES,
  CmRejectStatus,
  CmRequestPrivateData,
  ConnectCommand,
  ConnectData,
  ConnectInvalidResult,
  ConnectResult,
  FabricsCommand,
} from '../native/wire/fabrics.ts';
import { AdminOpcode, FabricsType } from '../native/wire/opcodes.ts';
import { viewOf } from '../native/wire/layout.ts';
import { Sqe } from '../native/wire/sqe.ts';
import { Status, decodeStatus } from '../native/wire/status.ts';
import type { PortConfig } from './config.ts';
import type { Context } from './context.ts';
import { Controller } from './controller.ts';
import { checkFraming, checkSgl } from './execute.ts';
import { DISCOVERY_KEEP_ALIVE_MS } from './keep-alive.ts';
import { queueFields } from './log.ts';
import { fail, isFailure, reply } from './outcome.ts';
import type { Failure, Reply } from './outcome.ts';
import type { TargetQueue } from './queue.ts';
import type { Subsystem } from './subsystem.ts';

/** How long a Connect waits for the queue that had its id before. */
export const QID_WAIT_MS = 1000;

// The connection request.

export interface Admission {
  readonly ok: true;
  readonly qid: number;
  readonly depth: number;
  /** Of an I/O queue: a controller that is there. */
  readonly namesController: boolean;
}

export interface Refusal {
  readonly ok: false;
  readonly status: CmRejectStatus;
  readonly reason: string;
}

/** `knownCntlid` tells whether any controller has that id. */
export function checkConnectionRequest(
  event: ConnectRequestEvent,
  port: PortConfig,
  knownCntlid: (cntlid: number) => boolean,
): Admission | Refusal {
  const refuse = (status: CmRejectStatus, reason: string): Refusal => ({
    ok: false,
    status,
    reason,
  });
  const { privateData } = event;
  if (privateData.length < CM_PRIVATE_DATA_BYTES) {
    return refuse(CmRejectStatus.invalidPrivateDataLength, `${privateData.length} bytes`);
  }
  const { recfmt, qid, hrqsize, hsqsize, cntlid } = CmRequestPrivateData.decode(privateData);
  const depth = hsqsize + 1;
  const most = qid === 0 ? ADMIN_QUEUE_ENTRIES_MIN : port.queueDepth;
  if (recfmt !== 0) return refuse(CmRejectStatus.invalidRecordFormat, `record format ${recfmt}`);
  if (qid > port.maxQueues) return refuse(CmRejectStatus.invalidQueueId, `queue id ${qid}`);
  if (hsqsize === 0 || depth > most) {
    return refuse(CmRejectStatus.invalidHsqsize, `${depth} entries where 2 to ${most} are offered`);
  }
  if (hrqsize < 2) return refuse(CmRejectStatus.invalidHrqsize, `${hrqsize} receive queue entries`);
  // Writes are fetched with RDMA READ: a host that takes none cannot write.
  if (event.responderResources === 0) {
    return refuse(CmRejectStatus.invalidIrd, 'the host answers no RDMA READ');
  }
  // Hosts before Linux 6.12 send 0 on I/O queues.
  if (qid !== 0 && cntlid !== 0 && !knownCntlid(cntlid)) {
    return refuse(CmRejectStatus.invalidCntlid, `controller ${cntlid} does not exist`);
  }
  return {
    ok: true,
    qid,
    depth: Math.min(depth, hrqsize),
    namesController: qid !== 0 && cntlid !== 0,
  };
}

// The Connect command.

export interface FirstCommand {
  readonly queue: TargetQueue;
  readonly tag: Tag;
  readonly sqe: Uint8Array;
  readonly data: Uint8Array;
}

interface Parsed {
  readonly command: ConnectCommand;
  readonly hostId: Uint8Array;
  readonly cntlid: number;
  readonly subsystemNqn: string;
  readonly hostNqn: string;
}

/** Connect Invalid Parameters with the place: an offset in the data or in the SQE. */
function invalid(place: 'data' | 'sqe', offset: number, reason: string): Failure {
  const result = ConnectInvalidResult.encode({ ipo: offset, inData: place === 'data' });
  return fail(Status.connectInvalid, place === 'sqe' ? offset : undefined, reason, {
    result: viewOf(result).getBigUint64(0, true),
  });
}

function parse({ queue, sqe, data }: FirstCommand): Parsed | Failure {
  const command = ConnectCommand.decode(sqe);
  const sgl = checkSgl(command.sgl1, 'toController', CONNECT_DATA_BYTES);
  if (sgl) return sgl;
  if (data.length < CONNECT_DATA_BYTES) {
    return fail(Status.sglDataLength, ConnectCommand.offsets.sgl1, `${data.length} bytes came`);
  }
  const { recfmt, qid, sqsize } = command;
  if (recfmt !== 0) {
    return fail(
      Status.connectIncompatible,
      ConnectCommand.offsets.recfmt,
      `record format ${recfmt}`,
    );
  }
  if (qid !== queue.cmQid) {
    return invalid(
      'sqe',
      ConnectCommand.offsets.qid,
      `queue ${qid} on a connection for ${queue.cmQid}`,
    );
  }
  if (sqsize === 0 || sqsize >= queue.depth) {
    return invalid(
      'sqe',
      ConnectCommand.offsets.sqsize,
      `SQSIZE ${sqsize} on a connection with ${queue.depth} entries`,
    );
  }
  return parseData(command, data);
}

function parseData(command: ConnectCommand, data: Uint8Array): Parsed | Failure {
  const { offsets } = ConnectData;
  const { hostid, cntlid } = ConnectData.decode(data);
  const field = (offset: number): Uint8Array => data.subarray(offset, offset + NQN_FIELD_BYTES);
  const subsystem = readNqnField(field(offsets.subnqn));
  if (!subsystem.ok) return invalid('data', offsets.subnqn, `SUBNQN ${subsystem.problem}`);
  const host = readNqnField(field(offsets.hostnqn));
  if (!host.ok) return invalid('data', offsets.hostnqn, `HOSTNQN ${host.problem}`);
  if (hostid.every((byte) => byte === 0)) return invalid('data', offsets.hostid, 'HOSTID is 0');
  return { command, hostId: hostid, cntlid, subsystemNqn: subsystem.nqn, hostNqn: host.nqn };
}

function findSubsystem(context: Context, nqn: string): Subsystem | Failure {
  const subsystem = context.subsystems.get(nqn);
  if (subsystem && !subsystem.removing) return subsystem;
  return invalid('data', ConnectData.offsets.subnqn, `no subsystem ${nqn}`);
}

function success(cntlid: number): Reply {
  return reply(viewOf(ConnectResult.encode({ cntlid })).getBigUint64(0, true));
}

function connectAdmin(context: Context, queue: TargetQueue, parsed: Parsed): Reply | Failure {
  const { hostNqn, hostId, command } = parsed;
  const subsystem = findSubsystem(context, parsed.subsystemNqn);
  if (isFailure(subsystem)) return subsystem;
  if (!subsystem.access.allows(hostNqn)) {
    return fail(Status.connectInvalidHost, undefined, `host ${hostNqn} is not allowed`);
  }
  if (context.drain.active && !subsystem.discovery) {
    return fail(Status.connectBusy, undefined, 'the target is drained', { retry: true });
  }
  if (parsed.cntlid !== CNTLID_DYNAMIC) {
    return invalid('data', ConnectData.offsets.cntlid, 'CNTLID must be FFFFh: dynamic controllers');
  }
  const cntlid = subsystem.allocateCntlid();
  if (cntlid === undefined) {
    return fail(Status.connectBusy, undefined, 'no controller id is free', { retry: true });
  }
  const byDefault = subsystem.discovery ? DISCOVERY_KEEP_ALIVE_MS : 0;
  const keepAliveMs = command.kato === 0 ? byDefault : command.kato;
  const controller = new Controller(context, subsystem, queue, {
    cntlid,
    hostNqn,
    hostId,
    keepAliveMs,
  });
  subsystem.attach(controller);
  queue.controller = controller;
  queue.move('admin');
  context.runtime.door.renewLeaseBy(queue.id, controller.keepAlive.lease);
  context.log.info(controller.summary, 'host connected');
  context.emit('controllerCreated', controller.summary);
  return success(cntlid);
}

/** The controller an I/O queue wants to join, if this host may. */
function findController(context: Context, parsed: Parsed): Controller | Failure {
  const { offsets } = ConnectData;
  const subsystem = findSubsystem(context, parsed.subsystemNqn);
  if (isFailure(subsystem)) return subsystem;
  const controller = subsystem.controllers.get(parsed.cntlid);
  if (!controller || controller.deleted) {
    return invalid('data', offsets.cntlid, `no controller ${parsed.cntlid}`);
  }
  if (controller.hostNqn !== parsed.hostNqn) {
    return invalid('data', offsets.hostnqn, `controller ${parsed.cntlid} belongs to another host`);
  }
  if (!controller.hostId.every((byte, index) => parsed.hostId[index] === byte)) {
    return invalid('data', offsets.hostid, `controller ${parsed.cntlid} has another HOSTID`);
  }
  if (!controller.ready) {
    return fail(Status.commandSequence, undefined, 'the controller is not enabled');
  }
  if (controller.discovery || parsed.command.qid > controller.maxQid) {
    return invalid('sqe', ConnectCommand.offsets.qid, `queue ${parsed.command.qid} is not granted`);
  }
  return controller;
}

/** A host may reconnect a queue before we know that the old one is gone. */
async function waitForQueueId(
  context: Context,
  controller: Controller,
  qid: number,
): Promise<boolean> {
  const deadline = context.clock.now() + QID_WAIT_MS;
  for (;;) {
    const old = controller.ioQueues.get(qid);
    if (!old) return true;
    const left = deadline - context.clock.now();
    if (left <= 0 || !(await within(context.clock, left, old.closed))) return false;
  }
}

async function connectIo(
  context: Context,
  queue: TargetQueue,
  parsed: Parsed,
): Promise<Reply | Failure> {
  const { qid, disableSqFlowControl } = parsed.command;
  const first = findController(context, parsed);
  if (isFailure(first)) return first;
  // Two may have waited for the same queue: the first one wins.
  if (!(await waitForQueueId(context, first, qid)) || first.ioQueues.has(qid)) {
    return fail(Status.commandSequence, ConnectCommand.offsets.qid, `queue ${qid} exists already`);
  }
  // The controller may have gone while we waited.
  const controller = findController(context, parsed);
  if (isFailure(controller)) return controller;
  if (!queue.live) return fail(Status.sqDeleted, undefined, 'the connection is gone');
  controller.ioQueues.set(qid, queue);
  queue.controller = controller;
  queue.move('io');
  context.runtime.door.bindQueue(queue.id, {
    table: controller.subsystem.table,
    qid,
    flowControlDisabled: disableSqFlowControl,
    cntlid: controller.cntlid,
    port: controller.arrival.portId,
    lease: controller.keepAlive.lease,
  });
  const summary = controller.queueSummary(queue);
  context.log.info(queueFields(summary), 'I/O queue connected');
  context.emit('queueConnected', summary);
  return success(controller.cntlid);
}

function firstCommandProblem(sqe: Uint8Array): Failure | undefined {
  const header = Sqe.decode(sqe);
  const isConnect =
    header.opcode === AdminOpcode.fabrics &&
    FabricsCommand.decode(sqe).fctype === FabricsType.connect;
  if (!isConnect) return fail(Status.commandSequence, 0, 'the first command must be Connect');
  return checkFraming(header);
}

/** Answers the first command of a queue. After a refusal the host may try again on the same connection. */
export async function connect(context: Context, first: FirstCommand): Promise<void> {
  const { queue, tag, sqe } = first;
  queue.move('connecting');
  const parsed = firstCommandProblem(sqe) ?? parse(first);
  let outcome: Reply | Failure;
  if (isFailure(parsed)) outcome = parsed;
  else if (parsed.command.qid === 0) outcome = connectAdmin(context, queue, parsed);
  else outcome = await connectIo(context, queue, parsed);
  if (outcome.kind === 'failure') {
    const status = decodeStatus(outcome.status).text;
    context.log.warn(
      { peer: queue.arrival.peer, status, parameter: outcome.parameter },
      `Connect refused: ${outcome.reason}`,
    );
    context.emit('refused', queue.arrival.peer, `${status}: ${outcome.reason}`);
    if (queue.live) queue.move('unconnected');
  }
  queue.complete(tag, outcome);
}
