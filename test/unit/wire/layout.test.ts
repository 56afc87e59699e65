import { expect } from 'chai';
import {
  bits,
  bytes,
  fits,
  flag,
  layout,
  nulPadded,
  numbers,
  record,
  records,
  spacePadded,
  u128,
  u16,
  u24,
  u32,
  u64,
  u8,
} from '../../../native/wire/layout.ts';

describe('layout', () => {
  it('refuses fields that overlap', () => {
    expect(() => layout(8, { a: u32(0), b: u16(2) })).to.throw('b overlaps a');
    const word = u8(0);
    expect(() => layout(1, { a: bits(word, 0, 5), b: bits(word, 4, 2) })).to.throw('b overlaps a');
    expect(() => layout(1, { a: word, b: flag(word, 7) })).to.throw('b overlaps a');
  });

  it('refuses fields that overrun', () => {
    expect(() => layout(7, { a: u64(0) })).to.throw('a at 0+8 overruns 7 bytes');
    expect(() => layout(8, { a: u32(6) })).to.throw('overruns');
    expect(() => bits(u16(0), 10, 7)).to.throw('bits 10+7 overrun');
  });

  it('reads and writes every kind of field, little-endian', () => {
    const flags = u16(1);
    const Inner = layout(2, { x: u8(0), y: u8(1) });
    const All = layout(80, {
      byte: u8(0),
      low: bits(flags, 0, 3),
      high: bits(flags, 9, 7),
      mid: flag(flags, 8),
      three: u24(3),
      four: u32(6),
      eight: u64(10),
      sixteen: u128(18),
      raw: bytes(34, 4),
      model: spacePadded(38, 6),
      name: nulPadded(44, 6),
      list: numbers(50, 3, u16),
      inner: record(56, Inner),
      inners: records(58, 2, Inner),
    });
    const values = {
      byte: 0xfe,
      low: 5,
      high: 0x55,
      mid: true,
      three: 0xabcdef,
      four: 0xdeadbeef,
      eight: 0x8000_0000_0000_0001n,
      sixteen: (0xfn << 120n) + 7n,
      raw: Uint8Array.of(1, 2, 3, 4),
      model: 'ab c',
      name: 'né',
      list: [1, 0xffff, 3],
      inner: { x: 9, y: 8 },
      inners: [
        { x: 1, y: 2 },
        { x: 3, y: 4 },
      ],
    };
    const encoded = All.encode(values);
    expect(All.decode(encoded)).to.deep.equal(values);
    expect([...encoded.subarray(0, 10)]).to.deep.equal([
      0xfe, 0x05, 0xab, 0xef, 0xcd, 0xab, 0xef, 0xbe, 0xad, 0xde,
    ]);
    expect(Buffer.from(encoded.subarray(38, 50)).toString('latin1')).to.equal(
      'ab c  n\u00c3\u00a9\0\0\0',
    );
    expect(All.offsets.eight).to.equal(10);
  });

  it('keeps a neighbour of all ones when one field of a word is patched', () => {
    const word = u32(0);
    const Word = layout(4, { a: bits(word, 0, 8), b: bits(word, 8, 16), c: bits(word, 24, 8) });
    const raw = new Uint8Array(4).fill(0xff);
    Word.patch(raw, 0, { b: 0 });
    expect([...raw]).to.deep.equal([0xff, 0, 0, 0xff]);
    Word.patch(raw, 0, { c: 1 });
    expect([...raw]).to.deep.equal([0xff, 0, 0, 1]);
  });

  it('writes reserved bytes as zero', () => {
    const Sparse = layout(8, { a: u8(0), b: u8(7) });
    const raw = new Uint8Array(10).fill(0xff);
    Sparse.write(raw, 1, { a: 1, b: 2 });
    expect([...raw]).to.deep.equal([0xff, 1, 0, 0, 0, 0, 0, 0, 2, 0xff]);
  });

  it('refuses values that do not fit, naming the field', () => {
    const Small = layout(4, { a: u8(0), t: spacePadded(1, 2) });
    expect(() => Small.encode({ a: 256 })).to.throw(RangeError, 'a: 256 does not fit 8 bits');
    expect(() => Small.encode({ a: -1 })).to.throw(RangeError);
    expect(() => Small.encode({ a: 1.5 })).to.throw(RangeError);
    expect(() => Small.encode({ t: 'abc' })).to.throw(RangeError, 't: "abc" does not fit 2 bytes');
    expect(() => layout(8, { a: u64(0) }).encode({ a: 1n << 64n })).to.throw(RangeError);
  });

  it('writes eight bytes from a number as from a bigint', () => {
    const Word = layout(8, { word: u64(0) });
    const view = new DataView(new ArrayBuffer(8));
    for (const value of [
      0,
      1,
      0xffff_ffff,
      2 ** 32,
      0x12_3456_789a_bcde,
      Number.MAX_SAFE_INTEGER,
    ]) {
      Word.fields.word.setNumber(view, 0, value);
      expect(Word.fields.word.get(view, 0)).to.equal(BigInt(value));
    }
    for (const value of [-1, 0.5, NaN, Infinity, 2 ** 53]) {
      expect(() => {
        Word.fields.word.setNumber(view, 0, value);
      }).to.throw(RangeError, `${value} does not fit 53 bits`);
    }
  });

  it('refuses bytes that are too short, at any place', () => {
    const Four = layout(4, { a: u32(0) });
    for (let length = 0; length < 4; length++) {
      expect(() => Four.decode(new Uint8Array(length))).to.throw(RangeError);
    }
    expect(() => Four.decode(new Uint8Array(4), 1)).to.throw(RangeError);
    expect(() => Four.decode(new Uint8Array(4), Number.MAX_SAFE_INTEGER)).to.throw(RangeError);
  });

  it('checks ranges without wrapping', () => {
    expect(fits(0, 4, 4)).to.equal(true);
    expect(fits(1, 4, 4)).to.equal(false);
    expect(fits(4, 0, 4)).to.equal(true);
    expect(fits(5, 0, 4)).to.equal(false);
    expect(fits(2 ** 53, 2 ** 53, 4)).to.equal(false);
  });
});
