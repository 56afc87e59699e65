/**
 * Why a connect failed, as one sentence for a person with what to do about it: from native's report of the RDMA
 * connection, and from the status of the Fabrics Connect command.
 */
import { NvmeStatusError } from '../native/common/errors.ts';
import { ConnectCommand, ConnectData, ConnectInvalidResult } from '../native/wire/fabrics.ts';
import type { StatusName } from '../native/wire/status.ts';
import type { ConnectFailure } from '../native/index.ts';
import { resultBytes } from './admin.ts';
import { describeCmReject } from './cm-reject.ts';
import { CommandTimeoutError, ConnectError, DisconnectedError } from './errors.ts';
import type { ConnectReason } from './errors.ts';
import type { ConnectFailedEvent } from './queue.ts';

export interface ConnectTarget {
  /** ADDRESS:PORT as a person writes it. */
  readonly endpoint: string;
  readonly nqn: string;
  readonly hostNqn: string;
  readonly timeoutMs: number;
}

type Row = readonly [ConnectReason, (target: ConnectTarget) => string];

const FAILURES: Readonly<Record<Exclude<ConnectFailure, 'rejected'>, Row>> = {
  unreachable: [
    'CONNECT_NO_ANSWER',
    ({ endpoint, timeoutMs }) =>
      `nobody answers at ${endpoint} within ${timeoutMs} ms; check the address, that a target runs ` +
      `there, and that no firewall drops UDP port 4791`,
  ],
  portUnreachable: [
    'CONNECT_PORT_UNREACHABLE',
    ({ endpoint }) =>
      `the host of ${endpoint} answers, but nothing takes RoCEv2 there (UDP port 4791 is closed); ` +
      `start the target`,
  ],
  badIcrc: [
    'CONNECT_BAD_ICRC',
    ({ endpoint }) =>
      `packets from ${endpoint} arrive with a wrong ICRC: something on the way rewrites them ` +
      `(address translation) or damages them; connect without NAT between the hosts`,
  ],
  mtuTooLarge: [
    'CONNECT_MTU_TOO_LARGE',
    ({ endpoint }) =>
      `small packets reach ${endpoint} but large ones do not: the path MTU is too large for the way ` +
      `there; choose a smaller one (1024 fits every Ethernet) or raise the MTU of every link`,
  ],
  cancelled: ['CONNECT_CANCELLED', ({ endpoint }) => `the connect to ${endpoint} was cancelled`],
  noResources: [
    'CONNECT_NO_RESOURCES',
    ({ endpoint }) =>
      `not enough resources here for a queue pair to ${endpoint}; ask for fewer or shorter queues`,
  ],
  addressInUse: [
    'CONNECT_SOURCE_ADDRESS',
    ({ endpoint }) =>
      `the source address for ${endpoint} is in use by another process; choose another one`,
  ],
};

/** What native reported for one queue. */
export function connectFailed(event: ConnectFailedEvent, target: ConnectTarget): ConnectError {
  const detail = event.message === '' ? '' : ` (${event.message})`;
  if (event.failure === 'rejected') {
    const { text, noListener } = describeCmReject(event.reason, event.privateData);
    return noListener
      ? new ConnectError(
          'CONNECT_NO_LISTENER',
          `the host of ${target.endpoint} speaks RoCEv2, but no NVMe target listens on this port; ` +
            `the usual one is 4420${detail}`,
        )
      : new ConnectError(
          'CONNECT_REJECTED',
          `${target.endpoint} rejected the connection: ${text}${detail}`,
        );
  }
  const [reason, message] = FAILURES[event.failure];
  return new ConnectError(reason, `${message(target)}${detail}`);
}

const SQE_FIELDS: ReadonlyMap<number, string> = new Map([
  [ConnectCommand.offsets.recfmt, 'RECFMT'],
  [ConnectCommand.offsets.qid, 'QID'],
  [ConnectCommand.offsets.sqsize, 'SQSIZE (queue depth)'],
  [ConnectCommand.offsets.priority, 'CATTR'],
  [ConnectCommand.offsets.kato, 'KATO (keep alive timeout)'],
]);

const DATA_FIELDS: ReadonlyMap<number, string> = new Map([
  [ConnectData.offsets.hostid, 'HOSTID'],
  [ConnectData.offsets.cntlid, 'CNTLID'],
  [ConnectData.offsets.subnqn, 'SUBNQN'],
  [ConnectData.offsets.hostnqn, 'HOSTNQN'],
]);

function invalidParameter(error: NvmeStatusError, target: ConnectTarget): ConnectError {
  const { ipo, inData } = ConnectInvalidResult.decode(resultBytes(error.result));
  const context = { object: target.nqn, cause: error };
  if (inData && ipo === ConnectData.offsets.subnqn) {
    return new ConnectError(
      'CONNECT_UNKNOWN_NQN',
      `unknown NQN: ${target.endpoint} has no subsystem "${target.nqn}"; ` +
        `nvmeof discover shows those it has`,
      context,
    );
  }
  const field = (inData ? DATA_FIELDS : SQE_FIELDS).get(ipo);
  const where = `byte ${ipo} of the ${inData ? 'Connect data' : 'command'}`;
  const hint =
    inData && ipo === ConnectData.offsets.hostnqn
      ? `; this host calls itself ${target.hostNqn}`
      : '';
  return new ConnectError(
    'CONNECT_INVALID_PARAMETER',
    `${target.endpoint} refuses the field ${field ?? where} of Connect${hint}`,
    context,
  );
}

type Refusal = (error: NvmeStatusError, target: ConnectTarget) => ConnectError;

const REFUSALS: ReadonlyMap<StatusName, Refusal> = new Map<StatusName, Refusal>([
  ['connectInvalid', invalidParameter],
  [
    'connectInvalidHost',
    (cause, { nqn, hostNqn }) =>
      new ConnectError(
        'CONNECT_HOST_NOT_ALLOWED',
        `the host ${hostNqn} is not allowed to connect to subsystem "${nqn}"; ` +
          `add it to the target's list of hosts`,
        { object: nqn, cause },
      ),
  ],
  [
    'connectBusy',
    (cause, { nqn }) =>
      new ConnectError(
        'CONNECT_BUSY',
        `subsystem "${nqn}" has no controller left, or its target is drained; try again later`,
        { object: nqn, cause },
      ),
  ],
  ['authenticationRequired', (cause, target) => authenticationRequired(target, cause)],
]);

/** What became of a Fabrics Connect, or of another command on the way to a live controller. */
export function connectRefused(error: unknown, target: ConnectTarget): unknown {
  const context = { object: target.nqn, cause: error };
  if (error instanceof CommandTimeoutError) {
    return new ConnectError(
      'CONNECT_TIMEOUT',
      `${target.endpoint} took the connection and then did not answer: ${error.message}`,
      context,
    );
  }
  if (error instanceof DisconnectedError) {
    return new ConnectError(
      'CONNECT_LOST',
      `${target.endpoint} took the connection and dropped it: ${error.message}`,
      context,
    );
  }
  if (!(error instanceof NvmeStatusError)) return error;
  const refusal = error.status === undefined ? undefined : REFUSALS.get(error.status);
  return refusal ? refusal(error, target) : error;
}

export function authenticationRequired(target: ConnectTarget, cause?: unknown): ConnectError {
  return new ConnectError(
    'CONNECT_AUTHENTICATION_REQUIRED',
    `subsystem "${target.nqn}" wants in-band authentication, which this version cannot do; ` +
      `allow the host without a key`,
    { object: target.nqn, cause },
  );
}
