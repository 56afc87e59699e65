/**
 * From a Fabrics Connect to a controller that can be used: enable, identify, queues. Straight async code in the order
 * in which Linux hosts do it, so that a target tried against the one works with the other.
 */
import { NvmeStatusError } from '../native/common/errors.ts';
import { DISCOVERY_NQN } from '../native/wire/fabrics.ts';
import { FeatureId, NumberOfQueues } from '../native/wire/features.ts';
import { Cns, Csi, IdentifyController, IdentifyNvmController } from '../native/wire/identify.ts';
import { viewOf } from '../native/wire/layout.ts';
import { identify, resultBytes, setFeatures } from './admin.ts';
import type { Association } from './association.ts';
import { connectRefused } from './connect-failure.ts';
import { enableController } from './enable.ts';
import type { EnabledController } from './enable.ts';
import { ConnectError } from './errors.ts';
import { checkIdentifyController } from './identify-checks.ts';
import type { CommandOptions } from './queue.ts';
import type { DeallocateLimits } from './transfers.ts';
import { transferBytesMax } from './transfers.ts';

const CAPSULE_UNIT_BYTES = 16;
const SQE_BYTES = 64;
const LIMIT_UNIT_BYTES = 4096;

export interface BroughtUp {
  readonly enabled: EnabledController;
  readonly data: IdentifyController;
  readonly discovery: boolean;
}

export interface TransferLimits {
  readonly transferBytesMax: number;
  readonly writeZeroesBytesMax: number;
  readonly verifyBytesMax: number;
  readonly deallocateLimits: DeallocateLimits;
}

export async function readIdentifyController(
  association: Association,
  options: CommandOptions,
): Promise<IdentifyController> {
  const fields = { cns: Cns.controller, name: 'Controller' };
  return IdentifyController.decode(await identify(association.admin, fields, options));
}

/** Enabled and identified; what cannot be used is refused with the name of the field. */
export async function bringUp(association: Association): Promise<BroughtUp> {
  const { options, clock } = association;
  const discovery = options.nqn === DISCOVERY_NQN;
  try {
    const enabled = await enableController({
      queue: association.admin,
      clock,
      options: association.bringUpOptions,
      nqn: options.nqn,
    });
    const data = await readIdentifyController(association, association.bringUpOptions);
    checkIdentifyController(data, {
      cntlid: association.cntlid,
      subsystemNqn: options.nqn,
      discovery,
      keepAliveMs: options.keepAliveMs,
    });
    return { enabled, data, discovery };
  } catch (error) {
    throw connectRefused(error, association.target);
  }
}

/** Entries of each I/O queue: what was asked, within what CAP and Identify allow. */
export function ioQueueEntries(depth: number, { enabled, data }: BroughtUp): number {
  const byMaxcmd = data.maxcmd === 0 ? Infinity : Math.max(data.maxcmd, 2);
  return Math.min(depth, enabled.cap.mqes + 1, byMaxcmd);
}

/** Data bytes that a command capsule of an I/O queue takes besides its SQE. */
export function inCapsuleBytes(data: IdentifyController): number {
  if (!data.sglsInCapsuleOffset) return 0;
  return Math.max(0, data.ioccsz * CAPSULE_UNIT_BYTES - SQE_BYTES);
}

/** Asks for queues; the controller may grant more or fewer than asked. */
async function grantedQueues(association: Association, wanted: number): Promise<number> {
  const request = NumberOfQueues.encode({ submission: wanted - 1, completion: wanted - 1 });
  const { result } = await setFeatures(
    association.admin,
    { fid: FeatureId.numberOfQueues, cdw11: viewOf(request).getUint32(0, true) },
    association.bringUpOptions,
  );
  const granted = NumberOfQueues.decode(resultBytes(result));
  return Math.min(wanted, granted.submission + 1, granted.completion + 1);
}

export async function connectIoQueues(
  association: Association,
  broughtUp: BroughtUp,
): Promise<void> {
  const { options, lease } = association;
  const entries = ioQueueEntries(options.depth, broughtUp);
  if (entries < 2) {
    throw new ConnectError(
      'CONNECT_UNUSABLE_CONTROLLER',
      `the controller of "${options.nqn}" allows I/O queues of ${entries} entries only`,
      { object: 'MQES' },
    );
  }
  try {
    association.ioQueuesAsked = options.queues ?? lease.reactors.length;
    const count = await grantedQueues(association, association.ioQueuesAsked);
    const capsule = inCapsuleBytes(broughtUp.data);
    for (let qid = 1; qid <= count; qid += 1) {
      await association.connectIo({ qid, entries, inCapsuleBytes: capsule });
    }
  } catch (error) {
    throw connectRefused(error, association.target);
  }
}

/** 2^n units of CAP.MPSMIN (4 KiB); 0: nothing said, then what a transfer may have. */
function bytesOfPower(power: number, otherwise: number): number {
  return power === 0 ? otherwise : LIMIT_UNIT_BYTES * 2 ** Math.min(power, 40);
}

/** Limits of commands; those without data from Identify CNS 06h, which older controllers do not know. */
export async function transferLimits(
  association: Association,
  data: IdentifyController,
): Promise<TransferLimits> {
  const transfer = transferBytesMax(data.mdts);
  const fields = {
    cns: Cns.commandSetController,
    csi: Csi.nvm,
    name: 'Controller for the NVM Command Set',
  };
  let nvm: IdentifyNvmController | undefined;
  try {
    const page = await identify(association.admin, fields, association.bringUpOptions);
    nvm = IdentifyNvmController.decode(page);
  } catch (error) {
    if (!(error instanceof NvmeStatusError)) throw connectRefused(error, association.target);
  }
  return {
    transferBytesMax: transfer,
    writeZeroesBytesMax: bytesOfPower(nvm?.wzsl ?? 0, transfer),
    verifyBytesMax: bytesOfPower(nvm?.vsl ?? 0, transfer),
    deallocateLimits: {
      ranges: nvm?.dmrl ?? 0,
      rangeBlocks: nvm?.dmrsl ?? 0,
      commandBlocks: nvm?.dmsl ?? 0n,
    },
  };
}
