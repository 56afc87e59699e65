/** The decoder of event records against golden bytes, one record of every kind, and against damaged ones. */
import { expect } from 'chai';
import { decodeEvents, RECORD_BYTES_MAX } from '../../../native/events.ts';

/** Hex with spaces and line breaks for readability. */
function bytes(hex: string): Uint8Array {
  return new Uint8Array(Buffer.from(hex.replace(/\s+/g, ''), 'hex'));
}

function text(value: string, length = value.length): string {
  return Buffer.from(value.padEnd(length, '\0'), 'latin1').toString('hex');
}

const SQE = '02'.padEnd(126, '0') + 'fe';
const CQE = '0102030405060708090a0b0c0d0e0f10';

const GOLDEN = {
  connectRequest: {
    hex: `b0000000 0100 0200 88000000 07000000 00000000 00000000 efcdab8967452301
          aabb ${text('192.0.2.1', 64)} ${text('fe80::1%eth0', 64)} 5cd1 10 08 00000000 000000000000`,
    event: {
      kind: 'connectRequest',
      connection: 0x0123456789abcdefn,
      listener: 7,
      peer: '192.0.2.1',
      peerPort: 0xd15c,
      local: 'fe80::1%eth0',
      responderResources: 16,
      initiatorDepth: 8,
      privateData: bytes('aabb'),
    },
  },
  queueEstablished: {
    hex: `28000000 0200 0300 00000000 05000000 00000000 04ff0000 0000000000000000
          010203 0000000000`,
    event: {
      kind: 'queueEstablished',
      queue: 5,
      responderResources: 4,
      initiatorDepth: 255,
      privateData: bytes('010203'),
    },
  },
  connectFailed: {
    hex: `28000000 0300 0200 03000000 06000000 00000000 02001c00 0000000000000000
          0107 ${text('no!')} 000000`,
    event: {
      kind: 'connectFailed',
      queue: 6,
      failure: 'rejected',
      reason: 28,
      privateData: bytes('0107'),
      message: 'no!',
    },
  },
  queueClosed: {
    hex: `28000000 0400 0000 08000000 ffffffff 00000000 00000000 0000000000000000 ${text('peer: bye').slice(0, 16)}`,
    event: { kind: 'queueClosed', queue: 0xffffffff, reason: 'peer: by' },
  },
  capsule: {
    hex: `68000000 0500 4000 05000000 09000000 feffffff 00000000 0000000000000000
          ${SQE} 1122334455 000000`,
    event: {
      kind: 'capsule',
      queue: 9,
      tag: 0xfffffffe,
      sqe: bytes(SQE),
      data: bytes('1122334455'),
    },
  },
  completion: {
    hex: `30000000 0600 1000 00000000 0a000000 01000000 02000000 0000000000000000 ${CQE}`,
    event: {
      kind: 'completion',
      queue: 10,
      tag: 1,
      transport: 'cancelled',
      status: 0x0807,
      result: 0x0807060504030201n,
      data: bytes(''),
    },
  },
  ioError: {
    hex: `60000000 0700 4000 00000000 0b000000 00000000 80402800 0000000000000000 ${SQE}`,
    event: { kind: 'ioError', queue: 11, sqe: bytes(SQE), status: 0x4080, parameter: 40 },
  },
  operationDone: {
    hex: `28000000 0800 0000 07000000 0c000000 00000000 10000000 0100000000000000 ${text('ca\u00c3\u00a9 is')} 00`,
    event: { kind: 'operationDone', operation: 12, error: 16, value: 1, message: 'caé is' },
  },
} as const;

describe('event records', () => {
  for (const [kind, { hex, event }] of Object.entries(GOLDEN)) {
    it(`decodes ${kind}`, () => {
      const record = bytes(hex);
      expect(new DataView(record.buffer).getUint32(0, true)).to.equal(record.length);
      expect(decodeEvents(record, record.length)).to.deep.equal([event]);
    });
  }

  it('decodes a batch in order, from a view at any offset', () => {
    const all = bytes(
      'cccccc' +
        Object.values(GOLDEN)
          .map((golden) => golden.hex)
          .join(''),
    );
    const events = decodeEvents(all.subarray(3), all.length - 3);
    expect(events.map((event) => event.kind)).to.deep.equal(Object.keys(GOLDEN));
  });

  it('copies: the buffer may be reused at once', () => {
    const record = bytes(GOLDEN.capsule.hex);
    const [event] = decodeEvents(Buffer.from(record.buffer), record.length);
    record.fill(0xee);
    expect(event).to.deep.equal(GOLDEN.capsule.event);
  });

  it('reads nothing beyond the given length', () => {
    const record = bytes(GOLDEN.completion.hex + GOLDEN.ioError.hex);
    expect(decodeEvents(record, 48)).to.have.length(1);
    expect(decodeEvents(record, 0)).to.deep.equal([]);
  });

  it('takes the largest record', () => {
    const record = new Uint8Array(RECORD_BYTES_MAX);
    const view = new DataView(record.buffer);
    view.setUint32(0, record.length, true);
    view.setUint16(4, 5, true);
    view.setUint16(6, 512, true);
    view.setUint32(8, 1 << 20, true);
    const [event] = decodeEvents(record, record.length);
    expect(event)
      .to.have.property('data')
      .with.length(1 << 20);
  });

  it('refuses a completion whose entry has another length', () => {
    const record = bytes(GOLDEN.completion.hex);
    new DataView(record.buffer).setUint16(6, 8, true);
    expect(() => decodeEvents(record, record.length)).to.throw(RangeError, /entry of 8 bytes/);
  });

  const damaged: Readonly<Record<string, readonly [offset: number, value: number]>> = {
    'a size that is no multiple of 8': [0, 0x2c],
    'a size beyond the batch': [0, 0x38],
    'a size below its header': [0, 0x18],
    'parts beyond its size': [8, 17],
    'an unknown kind': [4, 99],
    'an unknown transport outcome': [20, 3],
  };
  for (const [what, [offset, value]] of Object.entries(damaged)) {
    it(`refuses a record with ${what}`, () => {
      const record = bytes(GOLDEN.completion.hex);
      record[offset] = value;
      expect(() => decodeEvents(record, record.length)).to.throw(RangeError, 'event record');
    });
  }
});
