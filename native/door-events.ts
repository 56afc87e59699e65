/** The events that native hands to JavaScript through the door: see `Door.drain`. */
import type { ConnectionId, ListenerId, OperationId, QueueId, Tag } from './index.ts';

export type ConnectFailure =
  | 'unreachable'
  | 'portUnreachable'
  | 'rejected'
  | 'badIcrc'
  | 'mtuTooLarge'
  | 'cancelled'
  | 'noResources'
  | 'addressInUse';

export type DoorEvent =
  | {
      readonly kind: 'connectRequest';
      readonly connection: ConnectionId;
      readonly listener: ListenerId;
      readonly peer: string;
      readonly peerPort: number;
      readonly local: string;
      readonly responderResources: number;
      readonly initiatorDepth: number;
      readonly privateData: Uint8Array;
    }
  /** Target: the queue pair is up (RTU or first capsule). Initiator: the REP came, capsules may be sent. */
  | {
      readonly kind: 'queueEstablished';
      readonly queue: QueueId;
      readonly responderResources: number;
      readonly initiatorDepth: number;
      readonly privateData: Uint8Array;
    }
  | {
      readonly kind: 'connectFailed';
      readonly queue: QueueId;
      readonly failure: ConnectFailure;
      readonly reason: number;
      readonly privateData: Uint8Array;
      readonly message: string;
    }
  /** Target: the queue ends, no command of it begins any more, and none can change a backing; `queueClosed` follows. */
  | { readonly kind: 'queueQuiet'; readonly queue: QueueId }
  /** Last event of a queue: nothing of it is in flight, its buffers and keys are back. */
  | { readonly kind: 'queueClosed'; readonly queue: QueueId; readonly reason: string }
  /** Target: a command outside the native I/O table, with its data if it sends some. Answer with `complete`. */
  | {
      readonly kind: 'capsule';
      readonly queue: QueueId;
      readonly tag: Tag;
      readonly sqe: Uint8Array;
      readonly data: Uint8Array;
    }
  /** Initiator: the end of a submitted command. `data` only for `submit` toHost. */
  | {
      readonly kind: 'completion';
      readonly queue: QueueId;
      readonly tag: Tag;
      /** `ok`: the controller answered; else the queue died or the command was cancelled, and what it said is zero. */
      readonly transport: 'ok' | 'queueDied' | 'cancelled';
      /** Status field without phase bit, as in `ioError`. */
      readonly status: number;
      /** Dwords 0 and 1. */
      readonly result: bigint;
      readonly data: Uint8Array;
    }
  /** Target: an I/O command that native answered with an error; for the error log. */
  | {
      readonly kind: 'ioError';
      readonly queue: QueueId;
      readonly sqe: Uint8Array;
      /** Status field without phase bit: SC | SCT << 8 | flags, as in a CQE shifted right by one. */
      readonly status: number;
      /** Byte offset of the offending SQE field, 0xFFFF: none. */
      readonly parameter: number;
    }
  /**
   * A path of a queue over several refused a command, which went elsewhere; it takes none until it is set again. `status` 0:
   * memory could not be registered there.
   */
  | {
      readonly kind: 'pathRefused';
      readonly queue: QueueId;
      readonly path: number;
      /** Whose command it was: a later association of the path did not refuse anything. */
      readonly incarnation: number;
      readonly status: number;
    }
  /** A command there has had no answer for `ioTimeoutMs`; told once for each incarnation. */
  | {
      readonly kind: 'pathOverdue';
      readonly queue: QueueId;
      readonly path: number;
      readonly incarnation: number;
    }
  | {
      readonly kind: 'operationDone';
      readonly operation: OperationId;
      /** 0 or an errno value. */
      readonly error: number;
      readonly value: number;
      readonly message: string;
    };
