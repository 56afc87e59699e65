/** What FakeDoor keeps of the calls that were made to it. */
import type { DataDirection, Door, QueueId, Tag } from '../../native/index.ts';

export interface DoorCall {
  readonly name: keyof Door;
  readonly args: readonly unknown[];
}

export interface SubmittedCommand {
  readonly queue: QueueId;
  readonly tag: Tag;
  readonly sqe: Uint8Array;
  readonly direction: DataDirection;
  /** Bytes that go to the controller; empty for reads. */
  readonly data: Uint8Array;
  /** Bytes the host has room for (toHost) or sends (toController). */
  readonly length: number;
  /** The registered memory named by `submitBuffer`: a fake controller writes answers here. */
  readonly memory: Uint8Array | undefined;
}

export interface CompletedCommand {
  readonly queue: QueueId;
  readonly tag: Tag;
  readonly result: bigint;
  readonly status: number;
  readonly data: Uint8Array | undefined;
}
