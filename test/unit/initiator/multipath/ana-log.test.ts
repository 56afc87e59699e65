/** The ANA log page of an untrusted controller: what is taken from it, and what is refused by name. */
import { expect } from 'chai';
import { AnaLogHeader, AnaState, encodeAnaLog } from '../../../../native/wire/ana.ts';
import type { AnaLogGroup } from '../../../../native/wire/ana.ts';
import { IdentifyController } from '../../../../native/wire/identify.ts';
import type { LogPageFields } from '../../../../initiator/admin.ts';
import { ProtocolError } from '../../../../initiator/errors.ts';
import {
  anaLogBytesMax,
  decodeAnaLog,
  readAnaLog,
} from '../../../../initiator/multipath/ana-log.ts';
import { rejection } from '../support.ts';

const GROUPS_MAX = 8;
const MIB = 1 << 20;

function identify(fields: Partial<IdentifyController> = {}): IdentifyController {
  const given = { anagrpmax: GROUPS_MAX, nanagrpid: GROUPS_MAX, mnan: 64, nn: 64, ...fields };
  return IdentifyController.decode(IdentifyController.encode(given));
}

function group(id: number, state: number, nsids: readonly number[] = []): AnaLogGroup {
  return { group: id, changeCount: 1n, state, nsids };
}

/** A controller with this page; what lies beyond `limit` may not be read. */
class Reader {
  readonly reads: LogPageFields[] = [];
  page: Uint8Array;
  limit = Infinity;
  before: (read: number) => void = () => undefined;

  constructor(page: Uint8Array) {
    this.page = page;
  }

  readonly read = (fields: LogPageFields): Promise<Uint8Array> => {
    this.before(this.reads.length);
    this.reads.push(fields);
    const { bytes, offset = 0 } = fields;
    if (offset + bytes > this.limit) return Promise.reject(new Error('beyond its end'));
    const piece = new Uint8Array(bytes);
    piece.set(this.page.subarray(offset, offset + bytes));
    return Promise.resolve(piece);
  };

  get bytesRead(): number {
    return this.reads.reduce((sum, { bytes }) => sum + bytes, 0);
  }
}

describe('the ANA log page', () => {
  // NVMe Base 2.1, figures "Asymmetric Namespace Access Log Page" and "ANA Group Descriptor".
  const GOLDEN = Buffer.from(
    [
      '0700000000000000 0200 000000000000',
      '01000000 02000000 0600000000000000 01 000000000000000000000000000000',
      '02000000 03000000',
      '05000000 01000000 0700000000000000 03 000000000000000000000000000000',
      '09000000',
    ]
      .join('')
      .replaceAll(' ', ''),
    'hex',
  );

  it('is read as the specification has it', () => {
    const log = decodeAnaLog(GOLDEN, GROUPS_MAX);
    expect(log.changeCount).to.equal(7n);
    expect([...log.groups.values()]).to.deep.equal([
      { id: 1, state: 'optimized', nsids: [2, 3] },
      { id: 5, state: 'inaccessible', nsids: [9] },
    ]);
  });

  it('knows all five states', () => {
    const codes = Object.values(AnaState);
    const page = encodeAnaLog(
      1n,
      codes.map((code, index) => group(index + 1, code)),
    );
    const states = [...decodeAnaLog(page, GROUPS_MAX).groups.values()].map(({ state }) => state);
    const names = ['optimized', 'non-optimized', 'inaccessible', 'persistent-loss', 'change'];
    expect(states).to.deep.equal(names);
  });

  it('may list namespaces that the host does not know, and has its groups all the same', () => {
    const page = encodeAnaLog(1n, [group(1, 1, [1, 2, 0xffff_fffe]), group(2, 3, [77])]);
    const { groups } = decodeAnaLog(page, GROUPS_MAX);
    expect(groups.get(1)?.state).to.equal('optimized');
    expect(groups.get(2)?.state).to.equal('inaccessible');
  });

  const withCount = (ngrps: number): Uint8Array => {
    const page = encodeAnaLog(1n, [group(1, 1)]);
    page.set(AnaLogHeader.encode({ chgcnt: 1n, ngrps }));
    return page;
  };
  const withNamespaces = (nnsids: number): Uint8Array => {
    const page = encodeAnaLog(1n, [group(1, 1, [1])]);
    new DataView(page.buffer).setUint32(AnaLogHeader.size + 4, nnsids, true);
    return page;
  };
  const bad: readonly (readonly [string, Uint8Array, RegExp])[] = [
    ['is shorter than its header', new Uint8Array(15), /header/],
    ['has more groups than fit', withCount(2), /NGRPS is 2/],
    ['has the most groups that can be said', withCount(0xffff), /NGRPS is 65535/],
    ['has a group of more namespaces than fit', withNamespaces(2), /NNSIDS of group 1 is 2/],
    ['has a group of 2^32 - 1 namespaces', withNamespaces(0xffff_ffff), /NNSIDS.*4294967295/],
    ['has a group 0', encodeAnaLog(1n, [group(0, 1)]), /is 0, groups are 1 to 8 \(ANAGRPMAX\)/],
    ['has a group above ANAGRPMAX', encodeAnaLog(1n, [group(9, 1)]), /is 9.*ANAGRPMAX/],
    ['has a group twice', encodeAnaLog(1n, [group(1, 1), group(1, 3)]), /group 1 is there twice/],
    ['has a state 0', encodeAnaLog(1n, [group(1, 0)]), /unknown ANA state 0/],
    ['has a state 5', encodeAnaLog(1n, [group(1, 5)]), /unknown ANA state 5/],
  ];
  for (const [what, page, message] of bad) {
    it(`is refused when it ${what}`, () => {
      expect(() => decodeAnaLog(page, GROUPS_MAX)).to.throw(ProtocolError, message);
    });
  }

  it('of random bytes is an ANA log or a ProtocolError, never anything else', () => {
    let seed = 0x2545_f491;
    const random = (below: number): number => {
      seed ^= seed << 13;
      seed ^= seed >>> 17;
      seed ^= seed << 5;
      return (seed >>> 0) % below;
    };
    let taken = 0;
    for (let round = 0; round < 3000; round += 1) {
      const groups = Array.from({ length: random(4) }, (_, index) =>
        group(
          index + 1,
          random(5),
          Array.from({ length: random(4) }, () => random(100)),
        ),
      );
      const page = encodeAnaLog(BigInt(round), groups).slice(
        0,
        random(3) === 0 ? random(200) : 200,
      );
      for (let change = random(3); change > 0; change -= 1) {
        if (page.length > 0) page[random(page.length)] = random(256);
      }
      try {
        expect(decodeAnaLog(page, GROUPS_MAX).groups.size).to.be.at.most(GROUPS_MAX);
        taken += 1;
      } catch (error) {
        if (!(error instanceof ProtocolError)) throw error;
      }
    }
    expect(taken, 'pages that were taken').to.be.within(300, 2700);
  });
});

describe('reading the ANA log', () => {
  it('clears the event with the last reading only', async () => {
    const reader = new Reader(encodeAnaLog(1n, [group(1, 1)]));
    const log = await readAnaLog(reader.read, identify());
    expect(log.groups.get(1)?.state).to.equal('optimized');
    const retained = reader.reads.map(({ retainEvent }) => retainEvent ?? false);
    expect(retained).to.deep.equal([true, false]);
  });

  it('never reads beyond what Identify says it has', async () => {
    const data = identify({ nanagrpid: 1, mnan: 4 });
    const reader = new Reader(encodeAnaLog(1n, [group(1, 2, [1, 2, 3, 4])]));
    reader.limit = 16 + 32 + 4 * 4;
    const { groups } = await readAnaLog(reader.read, data);
    expect(groups.get(1)?.nsids).to.deep.equal([1, 2, 3, 4]);
  });

  it('reads a page of many pieces with few commands', async () => {
    const many = Array.from({ length: 1000 }, (_, index) =>
      group(index + 1, 1, [3 * index + 1, 3 * index + 2, 3 * index + 3]),
    );
    const data = identify({ anagrpmax: 1000, nanagrpid: 1000, mnan: 3000, nn: 3000 });
    const reader = new Reader(encodeAnaLog(1n, many));
    reader.limit = anaLogBytesMax(data);
    const { groups } = await readAnaLog(reader.read, data);
    expect(groups.size).to.equal(1000);
    expect(groups.get(1000)?.nsids).to.deep.equal([2998, 2999, 3000]);
    expect(reader.reads.length).to.be.at.most(2 + Math.ceil(reader.page.length / 4096));
  });

  it('reads no more of a long page than it has', async () => {
    const data = identify({ mnan: 100_000, nn: 100_000 });
    const reader = new Reader(encodeAnaLog(1n, [group(1, 1, [1])]));
    await readAnaLog(reader.read, data);
    expect(reader.bytesRead).to.be.at.most(4096 + 16);
  });

  it('reads a page that changed between two pieces again', async () => {
    const reader = new Reader(encodeAnaLog(1n, [group(1, 1)]));
    reader.before = (read) => {
      if (read === 1) reader.page = encodeAnaLog(2n, [group(1, 3)]);
    };
    const log = await readAnaLog(reader.read, identify());
    expect(log.changeCount).to.equal(2n);
    expect(log.groups.get(1)?.state).to.equal('inaccessible');
  });

  it('gives up on a change count that never settles', async () => {
    const reader = new Reader(new Uint8Array());
    reader.before = (read) => {
      reader.page = encodeAnaLog(BigInt(read), [group(1, 1)]);
    };
    const error = await rejection(readAnaLog(reader.read, identify()), ProtocolError);
    expect(error.message).to.match(/change count did not settle/);
    expect(reader.reads.length).to.be.at.most(16);
  });

  it('reads 1 MiB at most, whatever MNAN and NNSIDS are', async () => {
    const data = identify({ mnan: 0xffff_ffff, nn: 0xffff_ffff, nanagrpid: 0xffff_ffff });
    expect(anaLogBytesMax(data)).to.equal(MIB);
    const page = encodeAnaLog(1n, [group(1, 1, [1])]);
    new DataView(page.buffer).setUint32(AnaLogHeader.size + 4, 0xffff_ffff, true);
    const reader = new Reader(page);
    const error = await rejection(readAnaLog(reader.read, data), ProtocolError);
    expect(error.message).to.match(/NNSIDS of group 1/);
    expect(reader.bytesRead).to.be.at.most(MIB + 16);
  });

  it('takes NN for MNAN 0', () => {
    expect(anaLogBytesMax(identify({ nanagrpid: 2, mnan: 0, nn: 10 }))).to.equal(16 + 64 + 40);
  });

  it('passes on what a controller answers instead', async () => {
    const refused = (): Promise<Uint8Array> => Promise.reject(new RangeError('no'));
    expect((await rejection(readAnaLog(refused, identify()), RangeError)).message).to.equal('no');
  });
});
