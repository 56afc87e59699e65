/**
 * Event records as native writes them into the drained buffer. Each record is a 32-byte header, little-endian, and a
 * payload of two parts, padded to 8 bytes:
 *   0 u32 size of the record  4 u16 kind  6 u16 first  (bytes of the first part)  8 u32 second (bytes of the second part)
 *   12 u32 id (queue, listener, operation)  16 u32 tag  20 u32 code  24 u64 value
 * native/nvmf/event_sink.h has the C++ side of the same.
 */
import type { ConnectFailure, DoorEvent } from './index.ts';
import { Cqe, CQE_BYTES, CqeStatus } from './wire/cqe.ts';

const HEADER_BYTES = 32;
/** The largest record: header, 512 bytes in the first part, 1 MiB in the second. */
export const RECORD_BYTES_MAX = HEADER_BYTES + 512 + (1 << 20);

const EMPTY = new Uint8Array();

/** One record of the drained buffer. Most records are completions: only what a decoder asks for is made. */
class EventRecord {
  readonly view: DataView;
  readonly #bytes: Uint8Array;
  /** Where the record begins. */
  #at = 0;

  constructor(bytes: Uint8Array, length: number) {
    this.#bytes = bytes;
    this.view = new DataView(bytes.buffer, bytes.byteOffset, length);
  }

  get kind(): number {
    return this.view.getUint16(this.#at + 4, true);
  }
  get id(): number {
    return this.view.getUint32(this.#at + 12, true);
  }
  get tag(): number {
    return this.view.getUint32(this.#at + 16, true);
  }
  get code(): number {
    return this.view.getUint32(this.#at + 20, true);
  }
  get value(): bigint {
    return this.view.getBigUint64(this.#at + 24, true);
  }
  /** Where the first part begins, and its length. */
  get payload(): number {
    return this.#at + HEADER_BYTES;
  }
  get firstBytes(): number {
    return this.view.getUint16(this.#at + 6, true);
  }
  get first(): Uint8Array {
    return this.#copy(this.payload, this.firstBytes);
  }
  get second(): Uint8Array {
    return this.#copy(this.payload + this.firstBytes, this.view.getUint32(this.#at + 8, true));
  }

  /** Moves on to the record at `offset`; returns its size. */
  moveTo(offset: number): number {
    const room = this.view.byteLength - offset;
    if (room < HEADER_BYTES) throw new RangeError('event record without a whole header');
    this.#at = offset;
    const size = this.view.getUint32(offset, true);
    const first = this.firstBytes;
    const second = this.view.getUint32(offset + 8, true);
    if (size % 8 !== 0 || size > room || HEADER_BYTES + first + second > size) {
      throw new RangeError(`event record of ${size} bytes with parts of ${first} and ${second}`);
    }
    return size;
  }

  /** The buffer is reused at once. Not slice(): that of a Buffer would not copy. */
  #copy(offset: number, length: number): Uint8Array {
    return length === 0 ? EMPTY : new Uint8Array(this.#bytes.subarray(offset, offset + length));
  }
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

/** Dwords 0 and 1; most are zero, and a bigint costs an allocation. */
function resultOf({ view, payload }: EventRecord): bigint {
  const { result } = Cqe.fields;
  const at = payload + result.offset;
  const zero = view.getUint32(at, true) === 0 && view.getUint32(at + 4, true) === 0;
  return zero ? 0n : result.get(view, payload);
}

function completion(record: EventRecord): DoorEvent {
  if (record.firstBytes !== CQE_BYTES) {
    throw new RangeError(`completion with an entry of ${record.firstBytes} bytes`);
  }
  // Two fields, once per command: the whole entry would be made to be thrown away.
  return {
    kind: 'completion',
    queue: record.id,
    tag: record.tag,
    transport: entry(TRANSPORTS, record.code, 'transport outcome'),
    status: CqeStatus.fields.field.get(record.view, record.payload),
    result: resultOf(record),
    data: record.second,
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
  6: completion,
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
  9: ({ id }) => ({ kind: 'queueQuiet', queue: id }),
  10: ({ id, tag, code, value }) => ({
    kind: 'pathRefused',
    queue: id,
    path: tag,
    incarnation: Number(value),
    status: code,
  }),
  11: ({ id, tag, value }) => ({
    kind: 'pathOverdue',
    queue: id,
    path: tag,
    incarnation: Number(value),
  }),
};

/** Copies what it returns: the buffer is reused at once. */
export function decodeEvents(buffer: Uint8Array, length: number): DoorEvent[] {
  const record = new EventRecord(buffer, length);
  const events: DoorEvent[] = [];
  for (let offset = 0; offset < length;) {
    const size = record.moveTo(offset);
    const decode = DECODERS[record.kind];
    if (!decode) throw new RangeError(`event record of kind ${record.kind}`);
    events.push(decode(record));
    offset += size;
  }
  return events;
}
