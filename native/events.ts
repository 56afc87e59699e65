/**
 * Event records as native writes them into the drained buffer. Each record is a 32-byte header, little-endian, and a
 * payload of two parts, padded to 8 bytes:
 *   0 u32 size of the record  4 u16 kind  6 u16 first  (bytes of the first part)  8 u32 second (bytes of the second part)
 *   12 u32 id (queue, listener, operation)  16 u32 tag  20 u32 code  24 u64 value
 * native/nvmf/event_sink.h has the C++ side of the same.
 */
import type { ConnectFailure, DoorEvent } from './index.ts';

const HEADER_BYTES = 32;
/** The largest record: header, 512 bytes in the first part, 1 MiB in the second. */
export const RECORD_BYTES_MAX = HEADER_BYTES + 512 + (1 << 20);

interface EventRecord {
  readonly id: number;
  readonly tag: number;
  readonly code: number;
  readonly value: bigint;
  readonly first: Uint8Array;
  readonly second: Uint8Array;
}

const CONNECT_FAILURES: readonly ConnectFailure[] = [
  'unreachable',
  'portUnreachable',
  'rejected',
  'badIcrc',
  'mtuTooLarge',
  'cancelled',
  'noResources',
  'addressInUse',
];
const TRANSPORTS = ['ok', 'queueDied', 'cancelled'] as const;

/** EventAddresses in native/nvmf/event_sink.h. */
const ADDRESSES = { bytes: 136, peer: 0, local: 64, peerPort: 128, responder: 130, initiator: 131 };
const ADDRESS_TEXT_BYTES = 64;

const utf8 = new TextDecoder();

function addressText(bytes: Uint8Array, offset: number): string {
  const field = bytes.subarray(offset, offset + ADDRESS_TEXT_BYTES);
  const end = field.indexOf(0);
  return utf8.decode(end < 0 ? field : field.subarray(0, end));
}

function entry<T>(table: readonly T[], index: number, noun: string): T {
  const found = table[index];
  if (found === undefined) throw new RangeError(`event record with ${noun} ${index}`);
  return found;
}

function connectRequest(record: EventRecord): DoorEvent {
  const addresses = record.second;
  if (addresses.length !== ADDRESSES.bytes) {
    throw new RangeError(`connect request with ${addresses.length} bytes of addresses`);
  }
  const view = new DataView(addresses.buffer, addresses.byteOffset, addresses.byteLength);
  return {
    kind: 'connectRequest',
    connection: record.value,
    listener: record.id,
    peer: addressText(addresses, ADDRESSES.peer),
    peerPort: view.getUint16(ADDRESSES.peerPort, true),
    local: addressText(addresses, ADDRESSES.local),
    responderResources: view.getUint8(ADDRESSES.responder),
    initiatorDepth: view.getUint8(ADDRESSES.initiator),
    privateData: record.first,
  };
}

/** By the numbers of nvmf::EventKind. */
const DECODERS: Readonly<Record<number, (record: EventRecord) => DoorEvent>> = {
  1: connectRequest,
  2: ({ id, code, first }) => ({
    kind: 'queueEstablished',
    queue: id,
    responderResources: code & 0xff,
    initiatorDepth: (code >>> 8) & 0xff,
    privateData: first,
  }),
  3: ({ id, code, first, second }) => ({
    kind: 'connectFailed',
    queue: id,
    failure: entry(CONNECT_FAILURES, code & 0xffff, 'connect failure'),
    reason: code >>> 16,
    privateData: first,
    message: utf8.decode(second),
  }),
  4: ({ id, second }) => ({ kind: 'queueClosed', queue: id, reason: utf8.decode(second) }),
  5: ({ id, tag, first, second }) => ({
    kind: 'capsule',
    queue: id,
    tag,
    sqe: first,
    data: second,
  }),
  6: ({ id, tag, code, first, second }) => ({
    kind: 'completion',
    queue: id,
    tag,
    transport: entry(TRANSPORTS, code, 'transport outcome'),
    cqe: first,
    data: second,
  }),
  7: ({ id, code, first }) => ({
    kind: 'ioError',
    queue: id,
    sqe: first,
    status: code & 0xffff,
    parameter: code >>> 16,
  }),
  8: ({ id, code, value, second }) => ({
    kind: 'operationDone',
    operation: id,
    error: code,
    value: Number(value),
    message: utf8.decode(second),
  }),
};

/** Copies what it returns: the buffer is reused at once. */
export function decodeEvents(buffer: Uint8Array, length: number): DoorEvent[] {
  const view = new DataView(buffer.buffer, buffer.byteOffset, length);
  const events: DoorEvent[] = [];
  let offset = 0;
  while (offset < length) {
    if (length - offset < HEADER_BYTES) throw new RangeError('event record without a whole header');
    const size = view.getUint32(offset, true);
    const first = view.getUint16(offset + 6, true);
    const second = view.getUint32(offset + 8, true);
    if (size % 8 !== 0 || size > length - offset || HEADER_BYTES + first + second > size) {
      throw new RangeError(`event record of ${size} bytes with parts of ${first} and ${second}`);
    }
    const kind = view.getUint16(offset + 4, true);
    const decode = DECODERS[kind];
    if (!decode) throw new RangeError(`event record of kind ${kind}`);
    const payload = offset + HEADER_BYTES;
    events.push(
      decode({
        id: view.getUint32(offset + 12, true),
        tag: view.getUint32(offset + 16, true),
        code: view.getUint32(offset + 20, true),
        value: view.getBigUint64(offset + 24, true),
        // Not slice(): that of a Buffer would not copy.
        first: new Uint8Array(buffer.subarray(payload, payload + first)),
        second: new Uint8Array(buffer.subarray(payload + first, payload + first + second)),
      }),
    );
    offset += size;
  }
  return events;
}
