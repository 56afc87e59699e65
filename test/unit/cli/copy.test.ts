/** Copies between streams and a namespace of a fake controller: ranges off block bounds, order, errors, leaks. */
import { expect } from 'chai';
import { randomBytes } from 'node:crypto';
import { PassThrough, Readable, Writable } from 'node:stream';
import { NvmeStatusError } from '../../../native/common/errors.ts';
import { CliError } from '../../../tools/cli/context.ts';
import { copyIn, copyOut, pieces, rangeIn } from '../../../tools/cli/copy.ts';
import { startProgress } from '../../../tools/cli/progress.ts';
import { fakeNamespace } from '../initiator/fake-controller.ts';
import { makeBench, rejection } from '../initiator/support.ts';
import type { Bench } from '../initiator/support.ts';
import type { Controller } from '../../../initiator/index.ts';

const SILENT = { advance: () => undefined, end: () => undefined };

describe('copies', () => {
  let bench: Bench;
  let controller: Controller;
  let content: Buffer;

  beforeEach(async () => {
    bench = makeBench();
    content = randomBytes(3 * 1024 * 1024 + 512);
    const namespace = fakeNamespace(content.length / 512);
    namespace.data.set(content);
    bench.peer.namespaces.set(1, namespace);
    controller = await bench.connect();
  });

  afterEach(async () => {
    await controller.disconnect();
    expect(bench.door.buffers.size).to.equal(0);
  });

  /** What the namespace holds now. */
  const stored = (): Buffer => Buffer.from(bench.peer.namespaces.get(1)?.data ?? []);

  async function out(offset: bigint, length?: bigint): Promise<Buffer> {
    const chunks: Buffer[] = [];
    const sink = new Writable({
      highWaterMark: 1,
      write(chunk: Buffer, _encoding, done) {
        chunks.push(chunk);
        setImmediate(done);
      },
    });
    const ns = controller.namespace(1);
    await copyOut(controller, ns, rangeIn(ns, offset, length), sink, SILENT);
    await new Promise<void>((resolve) => sink.end(resolve));
    return Buffer.concat(chunks);
  }

  it('out give the bytes asked for, on any bounds', async () => {
    for (const [offset, length] of [
      [0, undefined],
      [0, 1],
      [511, 2],
      [512, 512],
      [1000, 2_500_001],
      [content.length, undefined],
    ] as const) {
      const data = await out(BigInt(offset), length === undefined ? undefined : BigInt(length));
      const end = length === undefined ? content.length : offset + length;
      expect(data.equals(content.subarray(offset, end)), `${offset}+${length ?? ''}`).to.equal(
        true,
      );
    }
  });

  it('in change the bytes sent, and none beside them', async () => {
    for (const [offset, length] of [
      [0, 512],
      [1, 1],
      [513, 100_000],
      [1024, 2_000_000],
      [4095, 1_048_577],
    ] as const) {
      const data = randomBytes(length);
      data.copy(content, offset);
      const source = Readable.from([data.subarray(0, 700), data.subarray(700)]);
      const options = { offset: BigInt(offset), length: undefined, fua: false };
      expect(await copyIn(controller.namespace(1), source, options, SILENT)).to.equal(
        BigInt(length),
      );
      expect(stored().equals(content), `${offset}+${length}`).to.equal(true);
    }
  });

  it('in take no more than the length given', async () => {
    const data = randomBytes(4096);
    data.copy(content, 100, 0, 1000);
    const options = { offset: 100n, length: 1000n, fua: true };
    expect(await copyIn(controller.namespace(1), Readable.from([data]), options, SILENT)).to.equal(
      1000n,
    );
    expect(stored().equals(content)).to.equal(true);
  });

  it('in of more than there is room for fail', async () => {
    const options = { offset: BigInt(content.length - 512), length: undefined, fua: false };
    const copying = copyIn(
      controller.namespace(1),
      Readable.from([randomBytes(1024)]),
      options,
      SILENT,
    );
    expect((await rejection(copying, CliError)).message).to.contain('longer than');
  });

  it('end with the error of a command, and give their buffers back', async () => {
    bench.peer.fail('read', 'unrecoveredRead', 0n, 1);
    expect((await rejection(out(0n), NvmeStatusError)).status).to.equal('unrecoveredRead');
    bench.peer.fail('write', 'capacityExceeded', 0n, 1);
    const options = { offset: 0n, length: undefined, fua: false };
    const copying = copyIn(controller.namespace(1), Readable.from([content]), options, SILENT);
    expect((await rejection(copying, NvmeStatusError)).status).to.equal('capacityExceeded');
    expect(controller.queues[0]?.outstanding).to.equal(0);
  });

  it('refuse ranges beyond the namespace', () => {
    const ns = controller.namespace(1);
    const { bytes } = ns;
    expect(rangeIn(ns, 0n, undefined)).to.deep.equal({ offset: 0n, length: bytes });
    for (const [offset, length] of [
      [bytes + 1n, undefined],
      [0n, bytes + 1n],
      [1n << 64n, 1n],
      [1n, bytes],
    ] as const) {
      if (offset === bytes + 1n) {
        expect(() => rangeIn(ns, offset, length)).to.throw(CliError, 'beyond');
      } else expect(() => rangeIn(ns, offset, length), String(offset)).to.throw(CliError);
    }
  });

  it('cut a stream into equal pieces', async () => {
    const lengths: number[] = [];
    const chunks = [3, 5, 1, 20, 2].map((length) => new Uint8Array(length));
    for await (const piece of pieces(Readable.from(chunks), 8)) lengths.push(piece.length);
    expect(lengths).to.deep.equal([8, 8, 8, 7]);
  });
});

describe('progress', () => {
  it('is silent where no terminal is', () => {
    const stderr = new PassThrough();
    const progress = startProgress({ stdin: Readable.from([]), stdout: stderr, stderr }, 'x', 100);
    progress.advance(50);
    progress.end();
    expect(stderr.read()).to.equal(null);
  });
});
