/**
 * Asynchronous events of one controller: keeps one request outstanding, and hands each event on before it asks for the
 * next, so that a controller that reports without end is answered at our pace.
 */
import { NvmeStatusError } from '../native/common/errors.ts';
import { AsyncEventResult, AsyncEventType, AsyncNotice } from '../native/wire/aer.ts';
import type { IdentifyController } from '../native/wire/identify.ts';
import { AsyncEventConfiguration } from '../native/wire/features.ts';
import { asyncEventRequest, resultBytes } from './admin.ts';
import { DisconnectedError } from './errors.ts';
import type { Queue } from './queue.ts';

export interface AsyncEvent {
  readonly kind:
    | 'namespaceAttributeChanged'
    | 'anaChange'
    | 'firmwareActivation'
    | 'discoveryLogChanged'
    | 'crossControllerResetCompleted'
    | 'other';
  readonly type: number;
  readonly info: number;
  /** The log page that says more, and must be read before the next event of this kind. */
  readonly logPage: number;
}

const NOTICES: ReadonlyMap<number, AsyncEvent['kind']> = new Map([
  [AsyncNotice.namespaceAttributeChanged, 'namespaceAttributeChanged'],
  [AsyncNotice.firmwareActivation, 'firmwareActivation'],
  [AsyncNotice.anaChange, 'anaChange'],
  [AsyncNotice.discoveryLogChanged, 'discoveryLogChanged'],
  [AsyncNotice.crossControllerResetCompleted, 'crossControllerResetCompleted'],
]);

export function decodeAsyncEvent(result: bigint): AsyncEvent {
  const { type, info, lid } = AsyncEventResult.decode(resultBytes(result));
  const notice = type === AsyncEventType.notice ? NOTICES.get(info) : undefined;
  return { kind: notice ?? 'other', type, info, logPage: lid };
}

/** CDW11 of Asynchronous Event Configuration: of what the controller offers, what is handled here. */
export function wantedEvents(data: IdentifyController): number {
  const bytes = AsyncEventConfiguration.encode({
    namespaceAttribute: data.oaesNamespaceAttribute,
    anaChange: data.oaesAna,
    crossControllerReset: data.oaesCrossControllerReset,
    discoveryChange: data.oaesDiscovery,
  });
  return new DataView(bytes.buffer).getUint32(0, true);
}

export interface AsyncEventLoop {
  readonly queue: Queue;
  readonly handle: (event: AsyncEvent) => Promise<void>;
  /** The controller refused the request: no events from now on. */
  readonly onRefused: (error: NvmeStatusError) => void;
}

/** Ends with the association, or when the controller refuses the request. */
export async function followAsyncEvents(loop: AsyncEventLoop): Promise<void> {
  for (;;) {
    let result: bigint;
    try {
      result = await asyncEventRequest(loop.queue);
    } catch (error) {
      if (error instanceof NvmeStatusError) loop.onRefused(error);
      else if (!(error instanceof DisconnectedError)) throw error;
      return;
    }
    await loop.handle(decodeAsyncEvent(result));
  }
}
