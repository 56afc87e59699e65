/**
 * Cross-Controller Reset (NVMe Base 2.3 section 5.4.3): a host ends a controller of its own that it cannot reach, through one that it
 * can. Success is reported only when no command of that controller can do anything any more: in the answer when that is soon, else in
 * the log page 1Eh, with an event.
 */
import { within } from '../native/common/clock.ts';
import {
  ALTERNATE_CONTROLLER_NONE,
  CROSS_CONTROLLER_RESETS_MAX,
  CrossControllerResetLog,
  CrossControllerResetStatus,
} from '../native/wire/logs.ts';
import { viewOf } from '../native/wire/layout.ts';
import { CrossControllerResetCommand, CrossControllerResetResult } from '../native/wire/sqe.ts';
import { Status } from '../native/wire/status.ts';
import type { Controller } from './controller.ts';
import { keyOf } from './life.ts';
import type { LifeName } from './life.ts';
import { fail, reply } from './outcome.ts';
import type { Failure, Outcome } from './outcome.ts';
import type { Prepared, Request } from './request.ts';

/** CCRL. */
export const CROSS_CONTROLLER_RESET_LIMIT = 4;
/** How long the command itself waits; less than any host waits for an admin command. */
export const IMMEDIATE_MS = 1000;

/** ICID, CIU and CIRN in the SQE. */
const ICID_BYTE = CrossControllerResetCommand.offsets.icid;

interface Entry {
  readonly name: LifeName;
  status: number;
}

/** The resets that one controller was asked for. */
export class CrossControllerResets {
  #inProgress = new Set<string>();
  #log: Entry[] = [];

  /** Why one more cannot be begun. */
  problem(name: LifeName): Failure | undefined {
    if (this.#inProgress.has(keyOf(name))) {
      return fail(
        Status.crossControllerResetInProgress,
        ICID_BYTE,
        `controller ${name.cntlid} is being reset already`,
      );
    }
    if (this.#inProgress.size >= CROSS_CONTROLLER_RESET_LIMIT) {
      const reason = `${CROSS_CONTROLLER_RESET_LIMIT} Cross-Controller Resets are in progress`;
      return fail(Status.crossControllerResetLimit, undefined, reason, { retry: true });
    }
    if (this.#log.length + this.#inProgress.size >= CROSS_CONTROLLER_RESETS_MAX) {
      const reason = 'the log page holds no more; read it with Remove Completed';
      return fail(Status.crossControllerResetLogFull, undefined, reason, { retry: true });
    }
    return undefined;
  }

  begin(name: LifeName): void {
    this.#inProgress.add(keyOf(name));
  }

  /** It ended within its command: nothing is left to tell. */
  end(name: LifeName): void {
    this.#inProgress.delete(keyOf(name));
  }

  /** It goes on: the page tells of it. */
  enter(name: LifeName): void {
    this.#log.push({ name, status: CrossControllerResetStatus.inProgress });
  }

  complete(name: LifeName, success: boolean): void {
    this.end(name);
    const { inProgress, success: ended, failure } = CrossControllerResetStatus;
    const entry = this.#log.find(
      (one) => one.status === inProgress && keyOf(one.name) === keyOf(name),
    );
    if (entry) entry.status = success ? ended : failure;
  }

  removeCompleted(): void {
    this.#log = this.#log.filter(({ status }) => status === CrossControllerResetStatus.inProgress);
  }

  page(): Uint8Array {
    return CrossControllerResetLog.encode({
      ne: this.#log.length,
      entries: this.#log.map(({ name, status }) => ({
        icid: name.cntlid,
        ciu: name.ciu,
        acid: ALTERNATE_CONTROLLER_NONE,
        ccrs: status,
        validated: true,
        initiated: true,
      })),
    });
  }
}

const IMMEDIATE = viewOf(
  CrossControllerResetResult.encode({ immediate: true, validated: true, initiated: true }),
).getBigUint64(0, true);

export function prepareCrossControllerReset({ controller, sqe }: Request): Prepared | Failure {
  const { icid, ciu, cirn } = CrossControllerResetCommand.decode(sqe);
  const name = { cntlid: icid, ciu, cirn };
  if (controller.life && keyOf(controller.life) === keyOf(name)) {
    return fail(Status.invalidField, ICID_BYTE, 'a controller cannot reset itself this way');
  }
  const problem = controller.resets.problem(name);
  return problem ?? { length: 0, run: () => reset(controller, name) };
}

async function reset(controller: Controller, name: LifeName): Promise<Outcome> {
  const { subsystem, context, resets, hostNqn, hostId } = controller;
  const fence = subsystem.fences.fence({ ...name, hostNqn, hostId });
  if (fence.kind === 'refused') {
    context.log.warn(
      { ...controller.summary, impacted: name.cntlid, reason: fence.reason },
      'Cross-Controller Reset refused: the host has to wait',
    );
    return fail(Status.invalidControllerId, ICID_BYTE, fence.reason);
  }
  resets.begin(name);
  if ((await within(context.clock, IMMEDIATE_MS, fence.over)) && (await fence.over)) {
    resets.end(name);
    report(controller, name, true);
    return reply(IMMEDIATE);
  }
  resets.enter(name);
  void fence.over.then((success) => {
    resets.complete(name, success);
    report(controller, name, success);
    controller.crossControllerResetCompleted();
  });
  return reply(0n);
}

function report(controller: Controller, name: LifeName, success: boolean): void {
  const fields = { ...controller.summary, impacted: name.cntlid };
  const { log } = controller.context;
  if (success) log.info(fields, 'Cross-Controller Reset: nothing of that controller can write');
  else log.warn(fields, 'Cross-Controller Reset failed: the host has to wait');
}
