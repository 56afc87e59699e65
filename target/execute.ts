/**
 * The gate every command of a connected queue passes, in this order: framing, the row of its table, what kind of queue and
 * controller may run it, NSID, the row's own checks, the SGL; only then it runs. Each refusal names status and field, and goes into
 * the controller's error log.
 */
import { messageOf } from '../native/common/errors.ts';
import { FabricsCommand } from '../native/wire/fabrics.ts';
import { AdminOpcode } from '../native/wire/opcodes.ts';
import type { DataDirectionName } from '../native/wire/opcodes.ts';
import { DataBlockDescriptor, SglSubtype, SglType, sglLength } from '../native/wire/sgl.ts';
import { PSDT_SGL, Sqe } from '../native/wire/sqe.ts';
import { Status, decodeStatus } from '../native/wire/status.ts';
import { findAdminCommand } from './commands.ts';
import { FABRICS_COMMANDS } from './fabrics.ts';
import { fail, isFailure } from './outcome.ts';
import type { Failure, Outcome, Reply } from './outcome.ts';
import type { CommandRow, Prepared, Request } from './request.ts';

const byFabricsType = new Map(FABRICS_COMMANDS.map((row) => [row.code, row]));

/** Byte of FUSE and PSDT. */
const FLAGS_BYTE = 1;
const FCTYPE_BYTE = 4;

export function checkFraming({ fuse, psdt }: Pick<Sqe, 'fuse' | 'psdt'>): Failure | undefined {
  if (fuse !== 0) return fail(Status.invalidField, FLAGS_BYTE, 'fused commands are not offered');
  if (psdt !== PSDT_SGL) return fail(Status.invalidField, FLAGS_BYTE, `PSDT ${psdt}`);
  return undefined;
}

/** The host's descriptor must be of a kind this transport has, and name exactly the bytes of the command. */
export function checkSgl(
  sgl1: Uint8Array,
  direction: DataDirectionName,
  length: number,
): Failure | undefined {
  const { type, subtype } = DataBlockDescriptor.decode(sgl1);
  const field = Sqe.offsets.sgl1;
  const inCapsule = type === SglType.dataBlock && subtype === SglSubtype.offset;
  const keyed =
    type === SglType.keyedDataBlock &&
    (subtype === SglSubtype.address || subtype === SglSubtype.invalidateKey);
  const usable = keyed || (inCapsule && direction === 'toController');
  if (length > 0 && !usable) {
    return fail(Status.sglType, field, `descriptor type ${type}, subtype ${subtype}`);
  }
  const named = sglLength(sgl1);
  if (named !== length) {
    return fail(Status.sglDataLength, field, `${named} bytes where ${length} are moved`);
  }
  return undefined;
}

function findRow({ header, sqe, queue }: Request): CommandRow | Failure {
  if (header.opcode === AdminOpcode.fabrics) {
    const { fctype } = FabricsCommand.decode(sqe);
    return (
      byFabricsType.get(fctype) ??
      fail(Status.invalidOpcode, FCTYPE_BYTE, `Fabrics command type ${fctype.toString(16)}h`)
    );
  }
  const row = queue.state === 'admin' ? findAdminCommand(header.opcode) : undefined;
  return row ?? fail(Status.invalidOpcode, 0, `opcode ${header.opcode.toString(16)}h`);
}

function checkPlace(row: CommandRow, { queue, controller, header }: Request): Failure | undefined {
  const field = header.opcode === AdminOpcode.fabrics ? FCTYPE_BYTE : 0;
  if (row.queues !== 'both' && row.queues !== queue.state) {
    return fail(Status.invalidOpcode, field, `${row.name} belongs on the ${row.queues} queue`);
  }
  if (controller.discovery && !row.discovery) {
    return fail(Status.invalidOpcode, field, `${row.name} is not for discovery`);
  }
  if (!row.whileDisabled && !controller.ready) {
    return fail(Status.commandSequence, undefined, 'the controller is not enabled');
  }
  if (row.nsid === 'unused' && header.nsid !== 0) {
    return fail(Status.invalidField, Sqe.offsets.nsid, `${row.name} takes no NSID`);
  }
  return undefined;
}

function prepare(request: Request): Prepared | Failure {
  const framing = checkFraming(request.header);
  if (framing) return framing;
  const row = findRow(request);
  if (isFailure(row)) return row;
  const place = checkPlace(row, request);
  if (place) return place;
  const prepared = row.prepare(request);
  if (isFailure(prepared)) return prepared;
  return checkSgl(request.header.sgl1, row.direction, prepared.length) ?? prepared;
}

function report(request: Request, failure: Failure): void {
  const { controller, queue, sqe, header } = request;
  const { status, parameter, reason } = failure;
  const sqid = queue.state === 'io' ? queue.cmQid : 0;
  controller.errorLog.add({ sqid, sqe, status, parameter });
  controller.context.log.debug(
    { ...controller.summary, sqid, cid: header.cid, opcode: header.opcode, parameter },
    `command refused: ${decodeStatus(status).text}: ${reason}`,
  );
}

function finish(request: Request, outcome: Outcome, prepared?: Prepared): void {
  if (outcome.kind === 'held') return;
  if (outcome.kind === 'failure') report(request, outcome);
  request.queue.complete(request.tag, outcome satisfies Reply | Failure);
  prepared?.after?.();
}

function failed(request: Request, error: unknown): Failure {
  const { controller } = request;
  controller.context.log.error(
    { ...controller.summary, opcode: request.header.opcode, error: messageOf(error) },
    'a command handler failed',
  );
  return fail(Status.internalError, undefined, messageOf(error), { retry: true });
}

function run(request: Request): void {
  const prepared = prepare(request);
  if (isFailure(prepared)) {
    finish(request, prepared);
    return;
  }
  const outcome = prepared.run();
  if (!(outcome instanceof Promise)) {
    finish(request, outcome, prepared);
    return;
  }
  outcome.then(
    (late) => {
      finish(request, late, prepared);
    },
    (error: unknown) => {
      finish(request, failed(request, error));
    },
  );
}

/** Runs one command and sends its answer. A mistake of ours costs this command only. */
export function execute(request: Request): void {
  try {
    run(request);
  } catch (error) {
    finish(request, failed(request, error));
  }
}
