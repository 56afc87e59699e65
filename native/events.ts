/**
 * Event records as native writes them into the drained buffer. Each record is a 32-byte header, little-endian, and a
 * payload of two parts, padded to 8 bytes:
 *   0 u32 size of the record  4 u16 kind  6 u16 first  (bytes of the first part)  8 u32 second (bytes of the second part)
 *   12 u32 id (queue, listener, operation)  16 u32 tag  20 u32 code  24 u64 value
 * native/nvmf/event_sink.h has the C++ side of the same.
 */
import type { DoorEvent } from './index.ts';

/** Copies what it returns: the buffer is reused at once. */
export function decodeEvents(buffer: Uint8Array, length: number): DoorEvent[] {
  void buffer;
  throw new Error(`decodeEvents: ${length} bytes`);
}
