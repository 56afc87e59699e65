/** I/O on namespaces: splitting, memory, errors, giving commands up. */
import { expect } from 'chai';
import { randomBytes } from 'node:crypto';
import { NvmeStatusError } from '../../../native/common/errors.ts';
import {
  ArgumentError,
  CommandAbortedError,
  CommandTimeoutError,
  DisconnectedError,
} from '../../../initiator/errors.ts';
import { BlockCommands } from '../../../initiator/block-commands.ts';
import { checkRange, split, splitRanges, transferBytesMax } from '../../../initiator/transfers.ts';
import { IoOpcode } from '../../../native/wire/opcodes.ts';
import { BlockCommand, DatasetManagementRange } from '../../../native/wire/sqe.ts';
import { STATUS_TABLE } from '../../../native/wire/status.ts';
import type { StatusName } from '../../../native/wire/status.ts';
import { fakeNamespace } from './fake-controller.ts';
import { makeBench, rejection, settle } from './support.ts';

describe('reads and writes', () => {
  it('come back as written, through copies and in registered memory', async () => {
    const { door, connect } = makeBench();
    const controller = await connect();
    const ns = controller.namespace(1);
    const data = randomBytes(8 * 512);
    await ns.write(5, data);
    expect(Buffer.from(await ns.read(5n, 8)).equals(data)).to.equal(true);

    const buffer = controller.allocateBuffer(8192);
    expect(await ns.read(5, 8, { buffer: buffer.bytes })).to.deep.equal(Uint8Array.from(data));
    const before = door.buffers.size;
    const part = buffer.bytes.subarray(1024, 1024 + 512);
    const result = await ns.read(6, 1, { buffer: part });
    expect(result.byteOffset).to.equal(1024);
    expect(Buffer.from(result).equals(data.subarray(512, 1024))).to.equal(true);
    const last = door.callsOf('submitBuffer').at(-1)?.args[0] as { memory: Uint8Array };
    expect(last.memory.buffer, 'zero-copy').to.equal(buffer.bytes.buffer);
    expect(last.memory.byteOffset).to.equal(1024);
    expect(door.buffers.size, 'no bounce buffer').to.equal(before);
    buffer.release();
    await controller.disconnect();
    expect(door.buffers.size).to.equal(0);
  });

  it('are split by MDTS and arrive whole', async () => {
    const { peer, connect } = makeBench();
    peer.controller = { ...peer.controller, mdts: 1 };
    const controller = await connect();
    expect(controller.transferBytesMax).to.equal(8192);
    const ns = controller.namespace(1);
    const data = randomBytes(100 * 512);
    peer.commands.length = 0;
    await ns.write(3, data);
    const sent = peer.commands.map(({ sqe, length }) => {
      const { slba, nlb } = BlockCommand.decode(sqe);
      return [slba, nlb + 1, length];
    });
    expect(sent).to.deep.equal([
      ...[3n, 19n, 35n, 51n, 67n, 83n].map((lba) => [lba, 16, 8192]),
      [99n, 4, 2048],
    ]);
    expect(Buffer.from(await ns.read(3, 100)).equals(data)).to.equal(true);
    await controller.disconnect();
  });

  it('never ask for a length that 24 bits do not hold', async () => {
    expect(transferBytesMax(0)).to.equal(0xff_ffff);
    expect(transferBytesMax(12)).to.equal(0xff_ffff);
    expect(transferBytesMax(11)).to.equal(8 * 1024 * 1024);
    const { peer, connect } = makeBench();
    peer.controller = { ...peer.controller, mdts: 0 };
    peer.namespaces.set(1, fakeNamespace(5120, 4096));
    const controller = await connect();
    const data = Buffer.alloc(16 * 1024 * 1024, 0xa5);
    peer.commands.length = 0;
    await controller.namespace(1).write(0, data);
    expect(peer.commands.map(({ length }) => length)).to.deep.equal([4095 * 4096, 4096]);
    await controller.disconnect();
  });

  it('go round the queues, to the one with the fewest commands', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect({ queues: 3 });
    const ns = controller.namespace(1);
    peer.hold = (name) => name === 'read';
    const reads = Array.from({ length: 6 }, () => ns.read(0, 1));
    await settle();
    expect(controller.queues.map(({ outstanding }) => outstanding)).to.deep.equal([2, 2, 2]);
    for (let i = 0; i < 6; i += 1) peer.answer('read');
    await Promise.all(reads);
    await controller.disconnect();
  });

  it('name the same blocks, whether the LBA is a number or a bigint', () => {
    const commands = new BlockCommands('Read', IoOpcode.read, 1);
    const named = (lba: number | bigint) =>
      [...split(checkRange(lba, 20), 20, 16, 512)].map((piece) => {
        const { slba, nlb } = BlockCommand.decode(commands.on(piece.lba, piece.blocks));
        return [slba, nlb];
      });
    const largest = Number.MAX_SAFE_INTEGER;
    for (const lba of [0, 7, 2 ** 32 - 17, 2 ** 32, largest - 20, largest - 1, largest]) {
      const expected = [
        [BigInt(lba), 15],
        [BigInt(lba) + 16n, 3],
      ];
      expect(named(lba)).to.deep.equal(expected);
      expect(named(BigInt(lba))).to.deep.equal(expected);
    }
  });

  it('refuse arguments that no controller can answer', async () => {
    const { connect } = makeBench();
    const controller = await connect();
    const ns = controller.namespace(1);
    const wrong = [
      () => ns.read(-1, 1),
      () => ns.read(0, 0),
      () => ns.read(0.5, 1),
      () => ns.read(0, 1.5),
      () => ns.read((1n << 64n) - 1n, 2),
      () => ns.read(0, 2, { buffer: new Uint8Array(1023) }),
      () => ns.write(0, new Uint8Array(0)),
      () => ns.write(0, new Uint8Array(513)),
      () => ns.compare(0, new Uint8Array(1)),
      () => ns.deallocate([]),
      () => ns.deallocate([{ lba: 0, count: 0 }]),
      () => ns.verify(0, -1),
    ];
    for (const run of wrong) await rejection(run(), ArgumentError);
    expect(() => controller.namespace(9)).to.throw(ArgumentError, 'it has 1');
    expect(() => controller.allocateBuffer(0)).to.throw(ArgumentError);
    await controller.disconnect();
  });

  it('carry every NVMe status as a typed error', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect();
    const ns = controller.namespace(1);
    const names = Object.keys(STATUS_TABLE).filter((name) => name !== 'success') as StatusName[];
    for (const name of names) {
      peer.fail('read', STATUS_TABLE[name].value | 0x4000, 7n, 1);
      const error = await rejection(ns.read(0, 1), NvmeStatusError);
      expect(error.status).to.equal(name);
      expect(error.dnr).to.equal(true);
      expect(error.result).to.equal(7n);
      expect(error.message).to.match(/^Read: /);
    }
    peer.fail('read', 0x3ff, 0n, 1);
    expect((await rejection(ns.read(0, 1), NvmeStatusError)).status).to.equal(undefined);
    const beyond = await rejection(ns.read(2048, 1), NvmeStatusError);
    expect(beyond.status).to.equal('lbaOutOfRange');
    await ns.read(0, 1);
    await controller.disconnect();
  });

  it('of which one piece fails reject once no piece is on its way', async () => {
    const { peer, connect } = makeBench();
    peer.controller = { ...peer.controller, mdts: 1 };
    const controller = await connect();
    peer.hold = (name) => name === 'read';
    const buffer = controller.allocateBuffer(64 * 512);
    let done = false;
    const failing = rejection(
      controller.namespace(1).read(0, 64, { buffer: buffer.bytes }),
      NvmeStatusError,
    ).then((error) => {
      done = true;
      return error;
    });
    await settle();
    peer.answer('read', { status: STATUS_TABLE.unrecoveredRead.value });
    await settle();
    expect(done).to.equal(false);
    for (let i = 0; i < 3; i += 1) peer.answer('read');
    expect((await failing).status).to.equal('unrecoveredRead');
    await buffer.idle();
    await controller.disconnect();
  });
});

describe('other commands', () => {
  it('compare, zero, deallocate, verify and flush', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect();
    const ns = controller.namespace(1);
    const data = randomBytes(4 * 512);
    await ns.write(0, data, { fua: true });
    const write = peer.commands.at(-1);
    expect(write && BlockCommand.decode(write.sqe).fua).to.equal(true);
    await ns.compare(0, data);
    const other = Buffer.from(data);
    other[700] = (other[700] ?? 0) ^ 1;
    expect((await rejection(ns.compare(0, other), NvmeStatusError)).status).to.equal(
      'compareFailure',
    );
    await ns.writeZeroes(1, 1, { deallocate: true });
    const zero = peer.commands.at(-1);
    expect(zero && BlockCommand.decode(zero.sqe)).to.include({ deac: true, nlb: 0, slba: 1n });
    expect((await ns.read(1, 1)).every((byte) => byte === 0)).to.equal(true);
    await ns.deallocate([
      { lba: 0, count: 1 },
      { lba: 2n, count: 2n },
    ]);
    expect((await ns.read(0, 4)).every((byte) => byte === 0)).to.equal(true);
    await ns.verify(0, 8);
    await ns.flush();
    expect(peer.log.slice(-5)).to.deep.equal([
      'read',
      'datasetManagement',
      'read',
      'verify',
      'flush',
    ]);
    await controller.disconnect();
  });

  it('are split by their own limits', async () => {
    const { peer, connect } = makeBench();
    peer.nvm = { wzsl: 3, vsl: 2 };
    const controller = await connect();
    const ns = controller.namespace(1);
    peer.log.length = 0;
    await ns.writeZeroes(0, 130);
    await ns.verify(0, 130);
    expect(peer.log.filter((name) => name === 'writeZeroes')).to.have.length(3);
    expect(peer.log.filter((name) => name === 'verify')).to.have.length(5);
    await controller.disconnect();
  });

  it('deallocate of more than 2^32 blocks becomes several ranges', () => {
    const unlimited = { ranges: 0, rangeBlocks: 0, commandBlocks: 0n };
    const long = [...splitRanges([{ lba: 1, count: (1n << 33n) + 5n }], unlimited)];
    expect(long).to.deep.equal([
      [
        { slba: 1n, nlb: 0xffff_ffff },
        { slba: 1n + 0xffff_ffffn, nlb: 0xffff_ffff },
        { slba: 1n + 2n * 0xffff_ffffn, nlb: 7 },
      ],
    ]);
    const many = Array.from({ length: 300 }, (_, index) => ({ lba: index, count: 1 }));
    expect([...splitRanges(many, unlimited)].map((list) => list.length)).to.deep.equal([256, 44]);
    const limited = { ranges: 2, rangeBlocks: 10, commandBlocks: 15n };
    expect([...splitRanges([{ lba: 0, count: 32 }], limited)]).to.deep.equal([
      [{ slba: 0n, nlb: 10 }],
      [{ slba: 10n, nlb: 10 }],
      [
        { slba: 20n, nlb: 10 },
        { slba: 30n, nlb: 2 },
      ],
    ]);
    expect(DatasetManagementRange.size).to.equal(16);
  });
});

describe('giving a command up', () => {
  it('an aborted read rejects at once; its buffer is free when its key is dead', async () => {
    const { door, peer, connect } = makeBench();
    const controller = await connect();
    const ns = controller.namespace(1);
    const cancels: (() => void)[] = [];
    const cancelNow = door.onCancel;
    door.onCancel = (queue, tag) => cancels.push(() => cancelNow?.(queue, tag));
    peer.hold = (name) => name === 'read';
    const abort = new AbortController();
    const buffer = controller.allocateBuffer(512);
    const reading = ns.read(0, 1, { buffer: buffer.bytes, signal: abort.signal });
    const failing = rejection(reading, CommandAbortedError);
    await settle();
    abort.abort(new Error('enough'));
    const error = await failing;
    expect(error.name).to.equal('AbortError');
    expect((error.cause as Error).message).to.equal('enough');
    let free = false;
    void Promise.all([error.released, buffer.idle()]).then(() => {
      free = true;
    });
    await settle();
    expect(free).to.equal(false);
    buffer.release();
    const other = controller.allocateBuffer(512);
    expect(other.bytes.buffer, 'not reused while its key lives').to.not.equal(buffer.bytes.buffer);
    cancels.forEach((cancel) => {
      cancel();
    });
    await error.released;
    await settle();
    expect(free).to.equal(true);
    const reused = controller.allocateBuffer(512);
    expect(reused.bytes.buffer, 'reused when it is dead').to.equal(buffer.bytes.buffer);
    await controller.disconnect();
  });

  it('an aborted long request covers all its commands', async () => {
    const { door, peer, connect } = makeBench();
    peer.controller = { ...peer.controller, mdts: 1 };
    const controller = await connect();
    peer.hold = (name) => name === 'write';
    const abort = new AbortController();
    const cancels: (() => void)[] = [];
    const cancelNow = door.onCancel;
    door.onCancel = (queue, tag) => cancels.push(() => cancelNow?.(queue, tag));
    const writing = controller
      .namespace(1)
      .write(0, new Uint8Array(48 * 512), { signal: abort.signal });
    const failing = rejection(writing, CommandAbortedError);
    await settle();
    expect(peer.heldNames.filter((name) => name === 'write')).to.have.length(3);
    abort.abort();
    const error = await failing;
    let released = false;
    void error.released.then(() => {
      released = true;
    });
    cancels.slice(0, 2).forEach((cancel) => {
      cancel();
    });
    await settle();
    expect(released).to.equal(false);
    cancels[2]?.();
    await error.released;
    await controller.disconnect();
  });

  it('an answer that comes while a command is aborted is not taken twice', async () => {
    const { door, peer, connect } = makeBench();
    const controller = await connect();
    peer.hold = (name) => name === 'read';
    door.onCancel = () => undefined;
    const abort = new AbortController();
    const failing = rejection(
      controller.namespace(1).read(0, 1, { signal: abort.signal }),
      CommandAbortedError,
    );
    await settle();
    abort.abort();
    const error = await failing;
    peer.answer('read');
    await error.released;
    await controller.disconnect();
  });

  it('a signal that fired before sends nothing', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect();
    peer.log.length = 0;
    const error = await rejection(
      controller.namespace(1).read(0, 1, { signal: AbortSignal.abort() }),
      CommandAbortedError,
    );
    await error.released;
    expect(peer.log).to.deep.equal([]);
    await controller.disconnect();
  });

  it('a command without an answer times out', async () => {
    const { door, clock, peer, connect } = makeBench();
    const controller = await connect({ commandTimeoutMs: 2000, keepAliveMs: 0 });
    peer.hold = (name) => name === 'read' || name === 'flush';
    const ns = controller.namespace(1);
    const reading = rejection(ns.read(0, 1), CommandTimeoutError);
    const flushing = rejection(ns.flush({ timeoutMs: 500 }), CommandTimeoutError);
    await settle();
    clock.advance(500);
    expect((await flushing).message).to.match(/^Flush: no answer in 500 ms/);
    expect(door.callsOf('cancel')).to.have.length(1);
    clock.advance(1500);
    const error = await reading;
    expect(error.timeoutMs).to.equal(2000);
    await error.released;
    await controller.disconnect();
    expect(clock.pending).to.equal(0);
  });

  it('disconnect and a lost queue end what is on its way, and later commands', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect();
    const ns = controller.namespace(1);
    peer.hold = (name) => name === 'read';
    const reading = rejection(ns.read(0, 1), DisconnectedError);
    await settle();
    await controller.disconnect();
    await reading;
    await rejection(ns.read(0, 1), DisconnectedError);
    await rejection(ns.flush(), DisconnectedError);
    expect(() => controller.allocateBuffer(1)).to.throw(DisconnectedError);
  });
});
