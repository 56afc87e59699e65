/**
 * What can go wrong at an initiator besides an NVMe status (`NvmeStatusError` of native/common): typed errors with a
 * stable `code`. No error is recognised by its text.
 */
import { NvmeofError } from '../native/common/errors.ts';
import type { ErrorContext } from '../native/common/errors.ts';

/** An argument that can be refused without asking the controller. */
export class ArgumentError extends NvmeofError {
  override readonly name = 'ArgumentError';
  constructor(message: string, context?: ErrorContext) {
    super('ARGUMENT_INVALID', message, context);
  }
}

/** Why a connection did not come about; each is also the `code` of the ConnectError. */
export type ConnectReason =
  /** No answer at all. */
  | 'CONNECT_NO_ANSWER'
  /** The host is there, but nothing takes RoCEv2 packets on it. */
  | 'CONNECT_PORT_UNREACHABLE'
  /** RoCEv2 is there, but no NVMe target on this port. */
  | 'CONNECT_NO_LISTENER'
  /** The connection manager of the target said no. */
  | 'CONNECT_REJECTED'
  | 'CONNECT_BAD_ICRC'
  | 'CONNECT_MTU_TOO_LARGE'
  | 'CONNECT_UNKNOWN_NQN'
  | 'CONNECT_HOST_NOT_ALLOWED'
  | 'CONNECT_AUTHENTICATION_REQUIRED'
  | 'CONNECT_BUSY'
  | 'CONNECT_INVALID_PARAMETER'
  /** The controller answers, but not in a way a host can use. */
  | 'CONNECT_UNUSABLE_CONTROLLER'
  | 'CONNECT_NOT_READY'
  | 'CONNECT_SOURCE_ADDRESS'
  | 'CONNECT_NO_RESOURCES'
  | 'CONNECT_CANCELLED'
  | 'CONNECT_TIMEOUT'
  | 'CONNECT_LOST';

/** A connection that did not come about: `code` says why, `message` says it to a person, with the remedy. */
export class ConnectError extends NvmeofError {
  override readonly name = 'ConnectError';
  declare readonly code: ConnectReason;
  // eslint-disable-next-line @typescript-eslint/no-useless-constructor -- it narrows the type of the code
  constructor(reason: ConnectReason, message: string, context?: ErrorContext) {
    super(reason, message, context);
  }
}

/** The association is gone; every command that was on its way ends with this. */
export class DisconnectedError extends NvmeofError {
  override readonly name = 'DisconnectedError';
  constructor(message: string, context?: ErrorContext) {
    super('DISCONNECTED', message, context);
  }
}

/** A command that had no answer in time, and was given up. */
export class CommandTimeoutError extends NvmeofError {
  override readonly name = 'CommandTimeoutError';
  readonly command: string;
  readonly timeoutMs: number;
  /** Resolves when the command's buffer is its owner's again. */
  readonly released: Promise<void>;

  constructor(command: string, timeoutMs: number, released: Promise<void>) {
    super('COMMAND_TIMEOUT', `${command}: no answer in ${timeoutMs} ms; given up`);
    this.command = command;
    this.timeoutMs = timeoutMs;
    this.released = released;
  }

  /** The same, of a request that was several commands. */
  withReleased(released: Promise<void>): CommandTimeoutError {
    return new CommandTimeoutError(this.command, this.timeoutMs, released);
  }
}

/** The caller's AbortSignal fired. Named and coded as the platform does; `cause` is the signal's reason. */
export class CommandAbortedError extends NvmeofError {
  override readonly name = 'AbortError';
  readonly command: string;
  /** Resolves when the command's buffer is its owner's again: its key is dead. */
  readonly released: Promise<void>;

  constructor(command: string, cause: unknown, released: Promise<void>) {
    super('ABORT_ERR', `${command}: aborted`, { cause });
    this.command = command;
    this.released = released;
  }

  /** The same, of a request that was several commands. */
  withReleased(released: Promise<void>): CommandAbortedError {
    return new CommandAbortedError(this.command, this.cause, released);
  }
}

/** A controller answered with bytes that make no sense. */
export class ProtocolError extends NvmeofError {
  override readonly name = 'ProtocolError';
  constructor(message: string, context?: ErrorContext) {
    super('PROTOCOL_ERROR', message, context);
  }
}
