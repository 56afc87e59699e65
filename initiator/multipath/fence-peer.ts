/**
 * Controllers as the fence sees them: what a lost one was, and what a live one can do about it.
 */
import {
  CROSS_CONTROLLER_RESET_REMOVE_COMPLETED,
  CrossControllerResetLog,
  LogId,
} from '../../native/wire/logs.ts';
import { NSID_ALL } from '../../native/wire/sqe.ts';
import type { AsyncEvent } from '../async-events.ts';
import type { Controller } from '../controller.ts';
import type { DisconnectedError } from '../errors.ts';
import type { FencePeer, ImpactedController } from './fence.ts';

const KAS_UNIT_MS = 100;

/** `lastSentMs`: on the clock that the fence will get, when its queues were closed. */
export function impactedBy(controller: Controller, lastSentMs: number): ImpactedController {
  const { data, cntlid, keepAliveMs } = controller;
  return {
    cntlid,
    ciu: data.ciu,
    cirn: data.cirn,
    keepAliveMs,
    keepAliveGranularityMs: data.kas * KAS_UNIT_MS,
    trafficBasedKeepAlive: data.ctrattTbkas,
    cqtMs: data.cqt,
    lastSentMs,
  };
}

export function peerOf(controller: Controller): FencePeer {
  return {
    name: `controller ${controller.cntlid} at ${controller.endpoint}`,
    resetLimit: controller.data.ccrl,
    reset: (life) => controller.crossControllerReset(life),
    readLog: (removeCompleted) =>
      controller.getLogPage({
        lid: LogId.crossControllerReset,
        bytes: CrossControllerResetLog.size,
        nsid: NSID_ALL,
        lsp: removeCompleted ? CROSS_CONTROLLER_RESET_REMOVE_COMPLETED : 0,
      }),
    resetCompleted: (signal) => nextCompletion(controller, signal),
  };
}

function nextCompletion(controller: Controller, signal: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const forget = (): void => {
      controller.off('asyncEvent', onEvent);
      controller.off('disconnected', onLost);
      signal.removeEventListener('abort', forget);
    };
    const onEvent = ({ kind }: AsyncEvent): void => {
      if (kind !== 'crossControllerResetCompleted') return;
      forget();
      resolve();
    };
    const onLost = (error: DisconnectedError): void => {
      forget();
      reject(error);
    };
    controller.on('asyncEvent', onEvent);
    controller.on('disconnected', onLost);
    signal.addEventListener('abort', forget);
  });
}
