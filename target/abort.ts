/**
 * Abort (NVMe Base 2.1 section 5.1.1): takes back an event request, or asks native to end an I/O command. Bit 0 of the result tells
 * the truth: 0 when the command was ended by this.
 */
import { AbortCommand } from '../native/wire/sqe.ts';
import { Status } from '../native/wire/status.ts';
import type { Controller } from './controller.ts';
import { fail, reply } from './outcome.ts';
import type { Failure, Outcome } from './outcome.ts';
import type { Prepared, Request } from './request.ts';

/** ACL is this less one. */
export const ABORT_LIMIT = 4;

const ABORTED = 0n;
const NOT_ABORTED = 1n;

export function prepareAbort({ controller, sqe }: Request): Prepared | Failure {
  const { sqid, abortedCid } = AbortCommand.decode(sqe);
  if (controller.aborts >= ABORT_LIMIT) {
    return fail(Status.abortLimit, undefined, `more than ${ABORT_LIMIT} Abort commands`, {
      retry: true,
    });
  }
  return {
    length: 0,
    run: () =>
      sqid === 0 ? abortAdmin(controller, abortedCid) : abortIo(controller, sqid, abortedCid),
  };
}

/** Of the admin queue only event requests last long enough to be aborted. */
function abortAdmin(controller: Controller, cid: number): Outcome {
  const tag = controller.asyncEvents.take(cid);
  if (tag === undefined) return reply(NOT_ABORTED);
  controller.adminQueue.complete(tag, fail(Status.abortRequested, undefined, 'aborted'));
  return reply(ABORTED);
}

async function abortIo(controller: Controller, sqid: number, cid: number): Promise<Outcome> {
  const queue = controller.ioQueues.get(sqid);
  if (!queue?.live) return reply(NOT_ABORTED);
  const { runtime } = controller.context;
  controller.aborts++;
  try {
    const found = await runtime.operation(runtime.door.abort(queue.id, cid));
    return reply(found === 1 ? ABORTED : NOT_ABORTED);
  } finally {
    controller.aborts--;
  }
}
