/**
 * Asynchronous events (NVMe Base 2.1 section 5.1.2): dword 0 of the completion. Bytes only.
 */
import { bits, layout, u32, u8 } from './layout.ts';
import type { RecordOf } from './layout.ts';

const dword0 = u32(0);

export const AsyncEventResult = layout(4, {
  type: bits(dword0, 0, 3),
  info: u8(1),
  /** Log page to read; reading it without RAE clears the event. */
  lid: u8(2),
});
export type AsyncEventResult = RecordOf<typeof AsyncEventResult>;

export const AsyncEventType = {
  error: 0,
  smart: 1,
  notice: 2,
  immediate: 3,
  ioCommandSet: 6,
  vendor: 7,
} as const;

export const AsyncNotice = {
  namespaceAttributeChanged: 0x00,
  firmwareActivation: 0x01,
  anaChange: 0x03,
  discoveryLogChanged: 0xf0,
  crossControllerResetCompleted: 0xf4,
} as const;
