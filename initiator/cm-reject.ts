/**
 * Why a connection manager rejected a request (InfiniBand Architecture, CM REJ reasons; NVMe RDMA Transport, REJ
 * private data), in words for a person.
 */
import {
  CM_REJECT_BYTES,
  CM_REJECT_TEXT,
  CM_REJ_CONSUMER,
  CmRejectPrivateData,
} from '../native/wire/fabrics.ts';

const CM_REJ_INVALID_SERVICE_ID = 8;

const REASON_TEXT: Readonly<Record<number, string>> = {
  1: 'it has no queue pair left',
  3: 'it has no resources left',
  4: 'its connection manager timed out',
  5: 'it does not support the request',
  6: 'invalid communication id',
  7: 'invalid communication instance',
  8: 'nothing listens on this port',
  9: 'invalid transport service type',
  10: 'it holds a stale connection with the same ids; try again',
  12: 'the address in the request is not one of its own',
  13: 'invalid LID',
  14: 'invalid service level',
  15: 'invalid traffic class',
  16: 'invalid hop limit',
  17: 'invalid packet rate',
  24: 'it redirects to another port and connection manager',
  25: 'it redirects to another port',
  26: 'the path MTU is too large for it',
  27: 'insufficient responder resources',
  29: 'invalid RNR retry count',
  30: 'duplicate communication id',
  31: 'another version of the CM protocol',
  32: 'invalid flow label',
};

export interface CmRejection {
  readonly text: string;
  /** Nothing listens on the port: a wrong port, or a target that does not serve it. */
  readonly noListener: boolean;
}

/** `privateData` is what follows in the REJ; only the NVMe transport's own record is understood. */
export function describeCmReject(reason: number, privateData: Uint8Array): CmRejection {
  const noListener = reason === CM_REJ_INVALID_SERVICE_ID;
  if (reason === CM_REJ_CONSUMER && privateData.length >= CM_REJECT_BYTES) {
    const { recfmt, sts } = CmRejectPrivateData.decode(privateData);
    const known = recfmt === 0 ? CM_REJECT_TEXT[sts] : undefined;
    if (known !== undefined) return { text: known, noListener };
    return { text: `NVMe reject status ${sts}`, noListener };
  }
  if (reason === CM_REJ_CONSUMER) return { text: 'it refuses without a reason', noListener };
  return { text: REASON_TEXT[reason] ?? `CM reject reason ${reason}`, noListener };
}
