/**
 * Declares a fixed-size little-endian structure as named fields with byte offsets, and reads and writes it. The only
 * place where bytes become values: no call site shifts or masks by hand. Overlapping or overrunning fields throw when
 * the module loads; a value that does not fit its field throws when it is written. Bytes without a field are reserved:
 * ignored when read, zero when written.
 */

/** A field of a structure: where it lies, and how it is read and written. */
export interface Field<T> {
  readonly offset: number;
  /** Bytes it lies in. */
  readonly size: number;
  /** For bits of a word: first bit and number of bits; absent when the field takes whole bytes. */
  readonly shift?: number;
  readonly width?: number;
  get(view: DataView, base: number): T;
  set(view: DataView, base: number, value: T): void;
}

/** A little-endian integer that can be cut into bits. */
export interface WordField extends Field<number> {
  readonly size: 1 | 2 | 4;
}

/** A little-endian integer of eight bytes. */
export interface WideField extends Field<bigint> {
  /** The same as `set`, for whole numbers up to 2^53. */
  setNumber(view: DataView, base: number, value: number): void;
}

type Declared = Readonly<Record<string, Field<unknown>>>;

/** The record a set of fields reads to. */
export type RecordOfFields<F> = {
  -readonly [K in keyof F]: F[K] extends Field<infer T> ? T : never;
};

/** The record type of a layout. */
export type RecordOf<L> = L extends Layout<infer F> ? RecordOfFields<F> : never;

/** True when `length` bytes from `offset` lie within `limit`; never wraps. */
export function fits(offset: number, length: number, limit: number): boolean {
  return length <= limit && offset <= limit - length;
}

export function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** `span`: 2 to the power of the bits. */
function checkInteger(value: number, span: number): void {
  if (!Number.isInteger(value) || value < 0 || value >= span) {
    throw new RangeError(`${value} does not fit ${Math.log2(span)} bits`);
  }
}

export function u8(offset: number): WordField {
  return {
    offset,
    size: 1,
    get: (view, base) => view.getUint8(base + offset),
    set: (view, base, value) => {
      checkInteger(value, 2 ** 8);
      view.setUint8(base + offset, value);
    },
  };
}

export function u16(offset: number): WordField {
  return {
    offset,
    size: 2,
    get: (view, base) => view.getUint16(base + offset, true),
    set: (view, base, value) => {
      checkInteger(value, 2 ** 16);
      view.setUint16(base + offset, value, true);
    },
  };
}

export function u24(offset: number): Field<number> {
  return {
    offset,
    size: 3,
    get: (view, base) =>
      view.getUint16(base + offset, true) + view.getUint8(base + offset + 2) * 0x10000,
    set: (view, base, value) => {
      checkInteger(value, 2 ** 24);
      view.setUint16(base + offset, value & 0xffff, true);
      view.setUint8(base + offset + 2, value >>> 16);
    },
  };
}

export function u32(offset: number): WordField {
  return {
    offset,
    size: 4,
    get: (view, base) => view.getUint32(base + offset, true),
    set: (view, base, value) => {
      checkInteger(value, 2 ** 32);
      view.setUint32(base + offset, value, true);
    },
  };
}

export function u64(offset: number): WideField {
  return {
    offset,
    size: 8,
    get: (view, base) => view.getBigUint64(base + offset, true),
    set: (view, base, value) => {
      if (value < 0n || value >= 1n << 64n) throw new RangeError(`${value} does not fit 64 bits`);
      view.setBigUint64(base + offset, value, true);
    },
    setNumber: (view, base, value) => {
      if (!Number.isSafeInteger(value) || value < 0) {
        throw new RangeError(`${value} does not fit 53 bits`);
      }
      view.setUint32(base + offset, value % 2 ** 32, true);
      view.setUint32(base + offset + 4, Math.floor(value / 2 ** 32), true);
    },
  };
}

/** 16 bytes as one number: SMART counters. */
export function u128(offset: number): Field<bigint> {
  const low = u64(offset);
  const high = u64(offset + 8);
  return {
    offset,
    size: 16,
    get: (view, base) => low.get(view, base) + (high.get(view, base) << 64n),
    set: (view, base, value) => {
      low.set(view, base, value & 0xffff_ffff_ffff_ffffn);
      high.set(view, base, value >> 64n);
    },
  };
}

/** `width` bits of a word from bit `shift` up. */
export function bits(word: WordField, shift: number, width: number): Field<number> {
  if (width < 1 || !fits(shift, width, word.size * 8)) {
    throw new Error(`bits ${shift}+${width} overrun a word of ${word.size} bytes`);
  }
  const scale = 2 ** shift;
  const span = 2 ** width;
  return {
    offset: word.offset,
    size: word.size,
    shift,
    width,
    get: (view, base) => Math.floor(word.get(view, base) / scale) % span,
    set: (view, base, value) => {
      checkInteger(value, span);
      const old = word.get(view, base);
      const mine = Math.floor(old / scale) % span;
      word.set(view, base, old - mine * scale + value * scale);
    },
  };
}

/** One bit of a word. */
export function flag(word: WordField, bit: number): Field<boolean> {
  const field = bits(word, bit, 1);
  return {
    offset: field.offset,
    size: field.size,
    shift: bit,
    width: 1,
    get: (view, base) => field.get(view, base) === 1,
    set: (view, base, value) => {
      field.set(view, base, value ? 1 : 0);
    },
  };
}

/** Raw bytes; reads a copy. Shorter values are padded with zeros. */
export function bytes(offset: number, size: number): Field<Uint8Array> {
  return {
    offset,
    size,
    get: (view, base) => new Uint8Array(view.buffer, view.byteOffset + base + offset, size).slice(),
    set: (view, base, value) => {
      if (value.length > size) throw new RangeError(`${value.length} bytes do not fit ${size}`);
      const into = new Uint8Array(view.buffer, view.byteOffset + base + offset, size);
      into.fill(0);
      into.set(value);
    },
  };
}

/** ASCII text padded with spaces (serial and model numbers). */
export function spacePadded(offset: number, size: number): Field<string> {
  return {
    offset,
    size,
    get: (view, base) => {
      let text = '';
      for (let index = 0; index < size; index++) {
        text += String.fromCharCode(view.getUint8(base + offset + index));
      }
      return text.replace(/[ \0]+$/, '');
    },
    set: (view, base, value) => {
      if (value.length > size) throw new RangeError(`"${value}" does not fit ${size} bytes`);
      for (let index = 0; index < size; index++) {
        const code = index < value.length ? value.charCodeAt(index) : 0x20;
        checkInteger(code, 2 ** 7);
        view.setUint8(base + offset + index, code);
      }
    },
  };
}

const utf8 = new TextDecoder('utf-8', { ignoreBOM: true });

/** UTF-8 text that ends at the first NUL, or fills the field (NQNs, addresses). Damaged UTF-8 reads as U+FFFD. */
export function nulPadded(offset: number, size: number): Field<string> {
  const raw = bytes(offset, size);
  return {
    offset,
    size,
    get: (view, base) => {
      const whole = raw.get(view, base);
      const end = whole.indexOf(0);
      return utf8.decode(end < 0 ? whole : whole.subarray(0, end));
    },
    set: (view, base, value) => {
      raw.set(view, base, new TextEncoder().encode(value));
    },
  };
}

/** `count` equal integers in a row. Shorter values are padded with zeros. */
export function numbers(
  offset: number,
  count: number,
  element: (offset: number) => WordField,
): Field<number[]> {
  const items = Array.from({ length: count }, (_, index) =>
    element(offset + index * element(0).size),
  );
  return {
    offset,
    size: count * element(0).size,
    get: (view, base) => items.map((item) => item.get(view, base)),
    set: (view, base, value) => {
      if (value.length > count) throw new RangeError(`${value.length} entries, room for ${count}`);
      items.forEach((item, index) => {
        item.set(view, base, value[index] ?? 0);
      });
    },
  };
}

/** A structure inside a structure. */
export function record<F extends Declared>(
  offset: number,
  inner: Layout<F>,
): Field<RecordOfFields<F>> {
  return {
    offset,
    size: inner.size,
    get: (view, base) => inner.read(view, base + offset),
    set: (view, base, value) => {
      inner.fill(view, base + offset, value);
    },
  };
}

/** `count` structures in a row; shorter values are padded with zeros. */
export function records<F extends Declared>(
  offset: number,
  count: number,
  inner: Layout<F>,
): Field<RecordOfFields<F>[]> {
  const at = (index: number): number => offset + index * inner.size;
  return {
    offset,
    size: count * inner.size,
    get: (view, base) =>
      Array.from({ length: count }, (_, index) => inner.read(view, base + at(index))),
    set: (view, base, value) => {
      if (value.length > count) throw new RangeError(`${value.length} entries, room for ${count}`);
      for (let index = 0; index < count; index++) {
        inner.fill(view, base + at(index), value[index] ?? {});
      }
    },
  };
}

/** A declared structure. */
export class Layout<F extends Declared> {
  readonly size: number;
  readonly fields: F;
  /** Byte offset of each field, for error reports. */
  readonly offsets: { readonly [K in keyof F]: number };

  constructor(size: number, fields: F) {
    this.size = size;
    this.fields = fields;
    this.offsets = Object.fromEntries(
      Object.entries(fields).map(([name, field]) => [name, field.offset]),
    ) as { readonly [K in keyof F]: number };
    checkFields(size, fields);
  }

  /** Reads a record; `at` is the structure's first byte. Throws a RangeError when the bytes are too short. */
  decode(from: Uint8Array, at = 0): RecordOfFields<F> {
    this.#checkRoom(from, at);
    return this.read(viewOf(from), at);
  }

  /** The bytes of a record; fields left out are zero. */
  encode(values: Partial<RecordOfFields<F>>): Uint8Array {
    const into = new Uint8Array(this.size);
    this.fill(viewOf(into), 0, values);
    return into;
  }

  /** Writes a record over the structure's bytes; everything left out becomes zero. */
  write(into: Uint8Array, at: number, values: Partial<RecordOfFields<F>>): void {
    this.#checkRoom(into, at);
    this.fill(viewOf(into), at, values);
  }

  /** Changes the named fields and leaves every other bit as it is. */
  patch(into: Uint8Array, at: number, values: Partial<RecordOfFields<F>>): void {
    this.#checkRoom(into, at);
    this.#set(viewOf(into), at, values);
  }

  read(view: DataView, base: number): RecordOfFields<F> {
    const values: Record<string, unknown> = {};
    for (const name in this.fields) values[name] = this.fields[name]?.get(view, base);
    return values as RecordOfFields<F>;
  }

  fill(view: DataView, base: number, values: Partial<RecordOfFields<F>>): void {
    const end = base + this.size;
    let at = base;
    for (; at + 8 <= end; at += 8) view.setBigUint64(at, 0n, true);
    for (; at < end; at++) view.setUint8(at, 0);
    this.#set(view, base, values);
  }

  #set(view: DataView, base: number, values: Partial<RecordOfFields<F>>): void {
    for (const name in values) {
      const value = values[name];
      if (value === undefined) continue;
      try {
        this.fields[name]?.set(view, base, value);
      } catch (error) {
        throw new RangeError(`${name}: ${(error as Error).message}`, { cause: error });
      }
    }
  }

  #checkRoom(within: Uint8Array, at: number): void {
    if (!fits(at, this.size, within.length)) {
      throw new RangeError(`${within.length} bytes, ${this.size} needed at ${at}`);
    }
  }
}

function checkFields(size: number, fields: Declared): void {
  const owner = new Array<string | undefined>(size * 8);
  for (const [name, field] of Object.entries(fields)) {
    if (!fits(field.offset, field.size, size)) {
      throw new Error(`${name} at ${field.offset}+${field.size} overruns ${size} bytes`);
    }
    const first = field.offset * 8 + (field.shift ?? 0);
    const width = field.width ?? field.size * 8;
    for (let bit = first; bit < first + width; bit++) {
      if (owner[bit] !== undefined) throw new Error(`${name} overlaps ${owner[bit]}`);
      owner[bit] = name;
    }
  }
}

/** Declares a structure of `size` bytes. */
export function layout<F extends Declared>(size: number, fields: F): Layout<F> {
  return new Layout(size, fields);
}
