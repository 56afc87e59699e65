/** Whether a controller can be a path of a subsystem that has others. */
import type { TransferLimits } from '../bring-up.ts';
import type { Controller } from '../controller.ts';
import type { Path } from './path.ts';

/** Of the first controller: others must be its equals. */
export interface FirstController {
  readonly data: Controller['data'];
  readonly limits: TransferLimits;
}

/** Why it does not belong to `others`, which have controllers now, or to `first`; undefined when it does. */
export function admissionProblem(
  controller: Controller,
  first: FirstController,
  others: readonly Path[],
): string | undefined {
  const { cntlid, data, transferBytesMax } = controller;
  const twin = others.find((other) => other.controller?.cntlid === cntlid);
  if (twin) {
    return `its controller id (CNTLID) ${cntlid} is that of path ${twin.endpoint}; targets that share a subsystem need disjoint ranges of them`;
  }
  if (others.length > 0 && !data.cmicMultiController) {
    return 'the subsystem has one controller only (CMIC bit 1 is 0)';
  }
  // After all were lost, targets that were set up anew may have another.
  if (others.length > 0 && data.sn !== first.data.sn) {
    return `its serial number (SN) is "${data.sn}", on the other paths "${first.data.sn}"; targets that share a subsystem must be configured with the same`;
  }
  return transferBytesMax < first.limits.transferBytesMax
    ? `its commands carry ${transferBytesMax} bytes (MDTS), those of the other paths ${first.limits.transferBytesMax}`
    : undefined;
}
