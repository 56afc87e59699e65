/**
 * Copies between a namespace and a stream in large pieces, several in flight, through registered buffers: what `read`
 * and `write` do. Offsets and lengths are bytes and need not fall on blocks; what lies around them is kept.
 */
import type { Readable, Writable } from 'node:stream';
import { once } from 'node:events';
import type { Controller, Namespace, RegisteredBuffer } from '../../initiator/index.ts';
import { CliError } from './context.ts';
import { ExitCode } from './exit-codes.ts';
import type { Progress } from './progress.ts';

const PIECE_BYTES = 1024 * 1024;
const IN_FLIGHT = 4;

export interface CopyRange {
  /** Bytes. */
  readonly offset: bigint;
  readonly length: bigint;
}

/** What was asked, or up to the end; refused when it lies beyond. */
export function rangeIn(
  namespace: Namespace,
  offset: bigint,
  length: bigint | undefined,
): CopyRange {
  const { bytes } = namespace;
  const wanted = length ?? (offset <= bytes ? bytes - offset : 0n);
  if (wanted > bytes || offset > bytes - wanted) {
    throw new CliError(
      ExitCode.usage,
      `${wanted} bytes from ${offset} lie beyond namespace ${namespace.nsid}, which has ${bytes} bytes`,
    );
  }
  return { offset, length: wanted };
}

interface BlockSpan {
  readonly lba: bigint;
  readonly blocks: number;
  /** Bytes before the wanted ones in the first block. */
  readonly skip: number;
}

function spanOf(namespace: Namespace, offset: bigint, length: number): BlockSpan {
  const size = BigInt(namespace.lbaSize);
  const lba = offset / size;
  const skip = Number(offset % size);
  return { lba, blocks: Math.ceil((skip + length) / namespace.lbaSize), skip };
}

function pieceBytes(namespace: Namespace): number {
  return Math.max(PIECE_BYTES, namespace.lbaSize);
}

async function writeOut(stream: Writable, bytes: Uint8Array): Promise<void> {
  // The stream keeps what it is given; the buffer is reused.
  if (!stream.write(Buffer.from(bytes))) await once(stream, 'drain');
}

/** Namespace to stream, in order. */
export async function copyOut(
  controller: Controller,
  namespace: Namespace,
  range: CopyRange,
  sink: Writable,
  progress: Progress,
): Promise<void> {
  const piece = pieceBytes(namespace);
  const buffers = Array.from({ length: IN_FLIGHT }, () =>
    controller.allocateBuffer(piece + 2 * namespace.lbaSize),
  );
  const pending: { readonly data: Promise<Uint8Array>; readonly buffer: RegisteredBuffer }[] = [];
  let next = range.offset;
  const end = range.offset + range.length;
  const startNext = (buffer: RegisteredBuffer): void => {
    const length = Number(end - next < BigInt(piece) ? end - next : BigInt(piece));
    const { lba, blocks, skip } = spanOf(namespace, next, length);
    next += BigInt(length);
    const data = namespace
      .read(lba, blocks, { buffer: buffer.bytes })
      .then((bytes) => bytes.subarray(skip, skip + length));
    // Its turn to be awaited comes later; until then a failure must not count as unhandled.
    data.catch(() => undefined);
    pending.push({ data, buffer });
  };
  try {
    for (const buffer of buffers) if (next < end) startNext(buffer);
    for (let first = pending.shift(); first; first = pending.shift()) {
      const bytes = await first.data;
      await writeOut(sink, bytes);
      progress.advance(bytes.length);
      if (next < end) startNext(first.buffer);
    }
  } finally {
    await Promise.allSettled(pending.map(({ data }) => data));
    for (const buffer of buffers) buffer.release();
  }
}

/** Cuts a stream into pieces of `bytes`; the last may be shorter. */
export async function* pieces(
  source: AsyncIterable<Uint8Array>,
  bytes: number,
): AsyncGenerator<Uint8Array> {
  let piece = new Uint8Array(bytes);
  let filled = 0;
  for await (const chunk of source) {
    for (let at = 0; at < chunk.length;) {
      const part = chunk.subarray(at, at + bytes - filled);
      piece.set(part, filled);
      filled += part.length;
      at += part.length;
      if (filled < bytes) continue;
      yield piece;
      piece = new Uint8Array(bytes);
      filled = 0;
    }
  }
  if (filled > 0) yield piece.subarray(0, filled);
}

/** Whole blocks around `data`, with what stood before and behind it read first. */
async function mergeBlocks(
  namespace: Namespace,
  { lba, blocks, skip }: BlockSpan,
  data: Uint8Array,
): Promise<Uint8Array> {
  const { lbaSize } = namespace;
  if (skip === 0 && data.length === blocks * lbaSize) return data;
  const whole = new Uint8Array(blocks * lbaSize);
  await namespace.read(lba, 1, { buffer: whole.subarray(0, lbaSize) });
  if (blocks > 1) {
    const last = lba + BigInt(blocks - 1);
    await namespace.read(last, 1, { buffer: whole.subarray((blocks - 1) * lbaSize) });
  }
  whole.set(data, skip);
  return whole;
}

export interface CopyInOptions {
  readonly offset: bigint;
  /** No more than this; undefined: all there is. */
  readonly length: bigint | undefined;
  readonly fua: boolean;
}

/** Stream to namespace; resolves with the bytes written. Data beyond `length` is not read. */
export async function copyIn(
  namespace: Namespace,
  source: Readable,
  options: CopyInOptions,
  progress: Progress,
): Promise<bigint> {
  const end = options.length === undefined ? namespace.bytes : options.offset + options.length;
  const running = new Set<Promise<void>>();
  let failed: unknown;
  let at = options.offset;
  for await (let piece of pieces(source, pieceBytes(namespace))) {
    if (failed !== undefined) break;
    if (BigInt(piece.length) > end - at) {
      if (options.length === undefined) {
        failed = new CliError(
          ExitCode.failed,
          `the input is longer than the ${namespace.bytes} bytes of namespace ${namespace.nsid}`,
        );
        break;
      }
      piece = piece.subarray(0, Number(end - at));
    }
    if (piece.length === 0) break;
    const span = spanOf(namespace, at, piece.length);
    const shared = span.skip !== 0 || piece.length % namespace.lbaSize !== 0;
    // Neighbouring pieces share a block then: one after the other.
    if (shared) await Promise.allSettled(running);
    const one = mergeBlocks(namespace, span, piece)
      .then((data) => namespace.write(span.lba, data, { fua: options.fua }))
      .then(() => {
        progress.advance(piece.length);
      })
      .catch((error: unknown) => {
        failed ??= error;
      })
      .finally(() => running.delete(one));
    running.add(one);
    at += BigInt(piece.length);
    if (shared) await one;
    else if (running.size >= IN_FLIGHT) await Promise.race(running);
    if (at === end && options.length !== undefined) break;
  }
  await Promise.allSettled(running);
  if (failed !== undefined) throw failed as Error;
  return at - options.offset;
}
