/**
 * Get Features and Set Features (NVMe Base 2.1 section 5.1.11, 5.1.25): one row per feature, from which the feature log page and the
 * capabilities answer are derived too. Nothing is saved over a restart.
 */
import {
  AsyncEventConfiguration,
  FeatureCapabilities,
  FeatureId,
  FeatureSelect,
  HostIdentifierSelect,
  NumberOfQueues,
  VolatileWriteCache,
} from '../native/wire/features.ts';
import { viewOf } from '../native/wire/layout.ts';
import type { Layout } from '../native/wire/layout.ts';
import { GetFeaturesCommand, NSID_ALL, SetFeaturesCommand } from '../native/wire/sqe.ts';
import { Status } from '../native/wire/status.ts';
import type { Controller } from './controller.ts';
import { DISCOVERY_KEEP_ALIVE_MS } from './keep-alive.ts';
import { fail, isFailure, reply } from './outcome.ts';
import type { Failure, Outcome, Reply } from './outcome.ts';
import type { Prepared, Request } from './request.ts';

export interface FeatureRow {
  readonly fid: number;
  readonly name: string;
  readonly discovery: boolean;
  readonly changeable: boolean;
  /** Bytes of data that Get returns. */
  readonly dataBytes: number;
  /** Absent: always there. */
  present?(controller: Controller): boolean;
  /** `initial` asks for the default value. */
  get(controller: Controller, initial: boolean, cdw11: number): Reply | Failure;
  set?(controller: Controller, cdw11: number): Outcome;
  /** Why Set is refused, whatever it says. */
  readonly setRefused?: Failure;
}

/** Byte offsets in the SQE. */
const FID_BYTE = 40;
const SEL_BYTE = 41;
const SAVE_BYTE = 43;
const CDW11_BYTE = 44;

type AnyLayout<T> = Pick<Layout<never>, 'size'> & {
  encode(values: Partial<T>): Uint8Array;
  decode(bytes: Uint8Array): T;
};

function toNumber<T>(layout: AnyLayout<T>, values: Partial<T>): number {
  return viewOf(layout.encode(values)).getUint32(0, true);
}

function fromNumber<T>(layout: AnyLayout<T>, value: number): T {
  const bytes = new Uint8Array(4);
  viewOf(bytes).setUint32(0, value, true);
  return layout.decode(bytes);
}

/** Both counts are 0-based on the wire, and 65536 queues cannot be. */
const QUEUES_INVALID = 0xffff;

function queuesResult({
  submission,
  completion,
}: {
  submission: number;
  completion: number;
}): Reply {
  return reply(
    toNumber(NumberOfQueues, { submission: submission - 1, completion: completion - 1 }),
  );
}

function getQueues(controller: Controller, initial: boolean): Reply {
  const all = controller.port.maxQueues;
  const granted = initial ? undefined : controller.grantedQueues;
  return queuesResult(granted ?? { submission: all, completion: all });
}

function setQueues(controller: Controller, cdw11: number): Outcome {
  const wanted = fromNumber(NumberOfQueues, cdw11);
  if (wanted.submission === QUEUES_INVALID || wanted.completion === QUEUES_INVALID) {
    return fail(Status.invalidField, CDW11_BYTE, 'FFFFh queues');
  }
  if (controller.ioQueues.size > 0) {
    return fail(Status.commandSequence, undefined, 'I/O queues exist already');
  }
  const most = controller.port.maxQueues;
  const granted = {
    submission: Math.min(wanted.submission + 1, most),
    completion: Math.min(wanted.completion + 1, most),
  };
  controller.grantedQueues = granted;
  return queuesResult(granted);
}

/** The notices this controller can send; SMART warnings may be asked for but never come. */
function eventMask({ discovery }: Controller): number {
  const values = discovery
    ? { discoveryChange: true }
    : { namespaceAttribute: true, anaChange: true, crossControllerReset: true, smart: 0xff };
  return toNumber(AsyncEventConfiguration, values);
}

function setEvents(controller: Controller, cdw11: number): Outcome {
  if ((cdw11 & ~eventMask(controller)) !== 0) {
    return fail(Status.invalidField, CDW11_BYTE, 'an event that is not offered');
  }
  controller.asyncEventConfiguration = cdw11;
  return reply();
}

function getKeepAlive(controller: Controller, initial: boolean): Reply {
  const byDefault = controller.discovery ? DISCOVERY_KEEP_ALIVE_MS : 0;
  return reply(initial ? byDefault : controller.keepAlive.timeoutMs);
}

function setKeepAlive(controller: Controller, cdw11: number): Outcome {
  controller.keepAlive.set(cdw11);
  return reply();
}

function getHostIdentifier(
  controller: Controller,
  _initial: boolean,
  cdw11: number,
): Reply | Failure {
  if (!fromNumber(HostIdentifierSelect, cdw11).exhid) {
    return fail(Status.invalidField, CDW11_BYTE, 'host identifiers have 16 bytes on fabrics');
  }
  return reply(0n, controller.hostId);
}

/** The cache of the backings cannot be turned off from here. */
function setWriteCache(_controller: Controller, cdw11: number): Outcome {
  if (fromNumber(VolatileWriteCache, cdw11).wce) return reply();
  return fail(Status.featureNotChangeable, CDW11_BYTE, 'the write cache stays on');
}

export const FEATURES: readonly FeatureRow[] = [
  {
    fid: FeatureId.volatileWriteCache,
    name: 'Volatile Write Cache',
    discovery: false,
    changeable: false,
    dataBytes: 0,
    present: ({ subsystem }) => subsystem.volatileWriteCache,
    get: () => reply(toNumber(VolatileWriteCache, { wce: true })),
    set: setWriteCache,
  },
  {
    fid: FeatureId.numberOfQueues,
    name: 'Number of Queues',
    discovery: false,
    changeable: true,
    dataBytes: 0,
    get: getQueues,
    set: setQueues,
  },
  {
    fid: FeatureId.asyncEventConfiguration,
    name: 'Asynchronous Event Configuration',
    discovery: true,
    changeable: true,
    dataBytes: 0,
    get: (controller, initial) => reply(initial ? 0 : controller.asyncEventConfiguration),
    set: setEvents,
  },
  {
    fid: FeatureId.keepAliveTimer,
    name: 'Keep Alive Timer',
    discovery: true,
    changeable: true,
    dataBytes: 0,
    get: getKeepAlive,
    set: setKeepAlive,
  },
  {
    fid: FeatureId.hostIdentifier,
    name: 'Host Identifier',
    discovery: false,
    changeable: false,
    dataBytes: 16,
    get: getHostIdentifier,
    // Connect has set it (NVMe Base 2.1 section 5.1.25.1.28).
    setRefused: fail(Status.commandSequence, undefined, 'Connect has set the host identifier'),
  },
];

const byFid = new Map(FEATURES.map((row) => [row.fid, row]));

/** Features of this controller. */
export function featuresOf(controller: Controller): FeatureRow[] {
  return FEATURES.filter(
    (row) => (row.discovery || !controller.discovery) && (row.present?.(controller) ?? true),
  );
}

function find(controller: Controller, fid: number): FeatureRow | Failure {
  const row = byFid.get(fid);
  if (row && featuresOf(controller).includes(row)) return row;
  return fail(Status.invalidField, FID_BYTE, `no feature ${fid.toString(16)}h`);
}

/** All features are the controller's. Hosts send NSID 0 or FFFFFFFFh. */
function namespaceProblem(nsid: number, status: number): Failure | undefined {
  if (nsid === 0 || nsid === NSID_ALL) return undefined;
  return fail(status, GetFeaturesCommand.offsets.nsid, 'the feature belongs to the controller');
}

function capabilities({ changeable }: FeatureRow): Reply {
  return reply(toNumber(FeatureCapabilities, { changeable }));
}

export function prepareGetFeatures({ controller, sqe }: Request): Prepared | Failure {
  const { fid, sel, cdw11, nsid } = GetFeaturesCommand.decode(sqe);
  const row = find(controller, fid);
  if (isFailure(row)) return row;
  const problem = namespaceProblem(nsid, Status.invalidField);
  if (problem) return problem;
  if (sel > FeatureSelect.capabilities) {
    return fail(Status.invalidField, SEL_BYTE, `select ${sel}`);
  }
  if (sel === FeatureSelect.capabilities) return { length: 0, run: () => capabilities(row) };
  // Nothing is saved: the saved value is the default.
  const initial = sel !== FeatureSelect.current;
  const value = row.get(controller, initial, cdw11);
  if (isFailure(value)) return value;
  return { length: row.dataBytes, run: () => value };
}

export function prepareSetFeatures({ controller, sqe }: Request): Prepared | Failure {
  const { fid, save, cdw11, nsid } = SetFeaturesCommand.decode(sqe);
  const row = find(controller, fid);
  if (isFailure(row)) return row;
  if (save) return fail(Status.featureNotSaveable, SAVE_BYTE, `${row.name} cannot be saved`);
  const problem = namespaceProblem(nsid, Status.featureNotNamespace);
  if (problem) return problem;
  if (row.setRefused) return row.setRefused;
  return {
    length: 0,
    run: () =>
      row.set?.(controller, cdw11) ??
      fail(Status.featureNotChangeable, FID_BYTE, `${row.name} cannot be set`),
  };
}
