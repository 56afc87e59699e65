/**
 * The library's promises besides plain I/O, target and initiator in one process: memory used in place, aborts, typed errors,
 * several controllers, reactors and addresses, discovery.
 */
import { expect } from 'chai';
import { connect, discover, CommandAbortedError, NvmeStatusError } from '../../initiator/index.ts';
import type { Controller } from '../../initiator/index.ts';
import { Target } from '../../target/index.ts';
import { expectLiveCounters, keepLiveCounters, liveCounters } from '../support/counters.ts';
import { NQN, failureOf, randomBytes, within, withTarget } from '../support/in-process.ts';

const MIB = 1 << 20;
/** An answer of a reactor takes microseconds; a machine that is busy with other things takes longer. */
const SOON_MS = 5000;

describe('library: memory', function () {
  this.timeout(20_000);
  const lease = keepLiveCounters();

  it('a pooled buffer is used in place, any part of it; other memory goes through a buffer', async () => {
    await withTarget({ namespaces: [{ memory: '16MiB' }] }, async (scope) => {
      const controller = await scope.connect();
      const namespace = controller.namespace(1);
      const buffers = (): number => liveCounters(lease())['live.buffers'] ?? 0;
      expect(buffers()).to.equal(0);
      const buffer = controller.allocateBuffer(4 * MIB);
      buffer.bytes.set(randomBytes(4 * MIB));
      expect(buffers()).to.equal(1);
      await namespace.write(0, buffer.bytes);
      const half = buffer.bytes.subarray(2 * MIB, 3 * MIB);
      const wanted = Buffer.from(buffer.bytes.subarray(512, 512 + MIB));
      expect(await namespace.read(1, MIB / 512, { buffer: half })).to.have.property(
        'buffer',
        half.buffer,
      );
      expect(wanted.equals(half)).to.be.true;
      expect(buffers(), 'nothing else was registered for it').to.equal(1);
      const ordinary = randomBytes(MIB);
      await namespace.write(0, ordinary);
      expect(Buffer.from(ordinary).equals(await namespace.read(0, MIB / 512))).to.be.true;
      expect(buffers(), 'ordinary memory needs a registered buffer').to.be.greaterThan(1);
      buffer.release();
    });
  });

  it('views with an odd offset into ordinary memory are read and written', async () => {
    await withTarget({ namespaces: [{ memory: '1MiB' }] }, async (scope) => {
      const namespace = (await scope.connect()).namespace(1);
      const data = randomBytes(3 * 512 + 7);
      await namespace.write(4, data.subarray(7));
      const into = new Uint8Array(3 * 512 + 100).fill(0x5a);
      await namespace.read(4, 3, { buffer: into.subarray(13, 13 + 3 * 512) });
      expect(Buffer.from(into.subarray(13, 13 + 3 * 512)).equals(data.subarray(7))).to.be.true;
      expect(into.subarray(0, 13).every((byte) => byte === 0x5a)).to.be.true;
      expect(into.subarray(13 + 3 * 512).every((byte) => byte === 0x5a)).to.be.true;
    });
  });
});

/** Rejects before any event from native can have come: in the microtasks of this turn. */
async function abortedAtOnce(pending: Promise<unknown>, abort: () => void): Promise<unknown> {
  const settled = failureOf(pending);
  let later = false;
  const immediate = setImmediate(() => (later = true));
  abort();
  const error = await settled;
  clearImmediate(immediate);
  expect(later, 'it waited for the event loop').to.be.false;
  return error;
}

describe('library: AbortSignal', function () {
  this.timeout(20_000);
  keepLiveCounters();

  for (const direction of ['read', 'write'] as const) {
    for (const memory of ['registered', 'ordinary'] as const) {
      it(`a ${direction} with ${memory} memory rejects at once; after "released" the memory is free`, async () => {
        await withTarget({ namespaces: [{ memory: '16MiB' }] }, async (scope) => {
          const controller = await scope.connect();
          const namespace = controller.namespace(1);
          await namespace.write(0, new Uint8Array(4 * MIB).fill(0x11));
          const buffer = controller.allocateBuffer(4 * MIB);
          const bytes = memory === 'registered' ? buffer.bytes : new Uint8Array(4 * MIB);
          bytes.fill(0x22);
          const abort = new AbortController();
          const { signal } = abort;
          const pending =
            direction === 'read'
              ? namespace.read(0, bytes.length / 512, { buffer: bytes, signal })
              : namespace.write(0, bytes, { signal });
          const reason = new Error('changed my mind');
          const error = await abortedAtOnce(pending, () => {
            abort.abort(reason);
          });
          if (!(error instanceof CommandAbortedError)) throw error;
          expect(error).to.include({ name: 'AbortError', code: 'ABORT_ERR', cause: reason });
          await within(SOON_MS, 'released', error.released);
          if (memory === 'registered') await within(SOON_MS, 'idle', buffer.idle());
          // The memory is ours: nothing of the command given up may show in it any more.
          bytes.fill(0x33);
          // Memory without length is detached.
          const untouched = (): boolean =>
            bytes.length === 0 || bytes.every((byte) => byte === 0x33);
          let atTheEnd: boolean | undefined;
          controller.once('disconnected', () => (atTheEnd = untouched()));
          // Giving a command up may cost the connection (docs/debugging.md), and pooled memory goes with it; then that
          // is told, and a new connection works.
          const again = await scope.connect();
          const content = await again.namespace(1).read(0, (4 * MIB) / 512);
          const allowed = direction === 'read' ? [0x11] : [0x11, 0x22];
          expect(content.every((byte) => allowed.includes(byte))).to.be.true;
          expect(atTheEnd ?? untouched()).to.be.true;
          if (controller.state === 'live') await namespace.write(0, bytes);
          else expect(controller.state).to.equal('lost');
          buffer.release();
        });
      });
    }
  }

  it('a signal that has fired already: nothing is sent, the connection stays', async () => {
    await withTarget({ namespaces: [{ memory: '1MiB' }] }, async (scope) => {
      const controller = await scope.connect();
      const namespace = controller.namespace(1);
      const signal = AbortSignal.abort();
      for (const start of [
        () => namespace.read(0, 1, { signal }),
        () => namespace.write(0, new Uint8Array(512).fill(1), { signal }),
        () => namespace.compare(0, new Uint8Array(512), { signal }),
        () => namespace.flush({ signal }),
        () => namespace.writeZeroes(0, 1, { signal }),
        () => namespace.verify(0, 1, { signal }),
        () => namespace.deallocate([{ lba: 0, count: 1 }], { signal }),
      ]) {
        expect(await failureOf(start())).to.be.instanceOf(CommandAbortedError);
      }
      expect((await namespace.read(0, 1)).every((byte) => byte === 0)).to.be.true;
      expect(controller.state).to.equal('live');
    });
  });
});

describe('library: status errors', function () {
  this.timeout(20_000);
  keepLiveCounters();

  async function expectStatus(start: () => Promise<unknown>, code: string): Promise<void> {
    const error = await failureOf(start());
    expect(error, String(start)).to.be.instanceOf(NvmeStatusError);
    expect(error, String(start)).to.include({ code, sct: 0 });
  }

  it('beyond the end of the namespace', async () => {
    await withTarget({ namespaces: [{ memory: '1MiB' }] }, async (scope) => {
      const controller = await scope.connect();
      const namespace = controller.namespace(1);
      const code = 'NVME_LBA_OUT_OF_RANGE';
      for (const lba of [2047, 2048, 2n ** 40n, 2n ** 64n - 2n]) {
        await expectStatus(() => namespace.read(lba, 2), code);
        await expectStatus(() => namespace.write(lba, new Uint8Array(1024)), code);
        await expectStatus(() => namespace.compare(lba, new Uint8Array(1024)), code);
        await expectStatus(() => namespace.writeZeroes(lba, 2), code);
        await expectStatus(() => namespace.verify(lba, 2), code);
        await expectStatus(() => namespace.deallocate([{ lba, count: 2 }]), code);
      }
      await namespace.read(2046, 2);
      expect(controller.state).to.equal('live');
    });
  });

  it('write protected', async () => {
    await withTarget({ namespaces: [{ memory: '1MiB', readOnly: true }] }, async (scope) => {
      const namespace = (await scope.connect()).namespace(1);
      expect(namespace.writeProtected).to.be.true;
      const code = 'NVME_NAMESPACE_WRITE_PROTECTED';
      await expectStatus(() => namespace.write(0, new Uint8Array(512)), code);
      await expectStatus(() => namespace.writeZeroes(0, 1), code);
      await expectStatus(() => namespace.deallocate([{ lba: 0, count: 1 }]), code);
      await namespace.read(0, 1);
      await namespace.compare(0, new Uint8Array(512));
      await namespace.verify(0, 1);
    });
  });

  it('a namespace that is not there any more', async () => {
    await withTarget({ namespaces: [{ memory: '1MiB' }, { memory: '1MiB' }] }, async (scope) => {
      const controller = await scope.connect();
      const namespace = controller.namespace(1);
      await scope.target.disableNamespace(NQN, 1);
      // In the same turn: the host cannot have heard of it.
      await expectStatus(() => namespace.read(0, 1), 'NVME_INVALID_NAMESPACE');
      await controller.namespace(2).read(0, 1);
    });
  });
});

async function writeAndReadBack(controller: Controller, lba: number, bytes: number): Promise<void> {
  const data = randomBytes(bytes);
  const namespace = controller.namespace(1);
  await namespace.write(lba, data);
  expect(Buffer.from(data).equals(await namespace.read(lba, bytes / namespace.lbaSize))).to.be.true;
}

describe('library: several of everything', function () {
  this.timeout(20_000);
  const cores = [-1, -1];
  const lease = keepLiveCounters(cores);

  it('two controllers at once: each sees what the other wrote, and outlives it', async () => {
    await withTarget({ namespaces: [{ memory: '16MiB' }] }, async (scope) => {
      const { target } = scope;
      const [first, second] = await Promise.all([scope.connect(), scope.connect()]);
      expect(first.cntlid).not.to.equal(second.cntlid);
      expect(target.controllers.map(({ cntlid }) => cntlid).sort()).to.deep.equal(
        [first.cntlid, second.cntlid].sort(),
      );
      await Promise.all([
        writeAndReadBack(first, 0, 4 * MIB),
        writeAndReadBack(second, (4 * MIB) / 512, 4 * MIB),
      ]);
      const data = randomBytes(2 * MIB);
      await first.namespace(1).write(77, data);
      await second.namespace(1).compare(77, data);
      await first.disconnect();
      expect(first.state).to.equal('disconnected');
      await writeAndReadBack(second, 5, 3 * MIB);
      expect(target.controllers).to.have.length(1);
    });
  });

  it('two reactors carry the queues of both sides', async () => {
    await withTarget({ cores, namespaces: [{ memory: '16MiB' }] }, async (scope) => {
      const { target } = scope;
      const controller = await scope.connect({ cores, queues: 6 });
      expect(controller.queues.map(({ reactor }) => reactor)).to.deep.equal([0, 1, 0, 1, 0, 1]);
      expect(target.placement.map(({ ioQueues }) => ioQueues)).to.deep.equal([3, 3]);
      const lanes = Array.from({ length: 24 }, (_, i) =>
        writeAndReadBack(controller, (i * 512 * 1024) / 512, 300 * 512),
      );
      await Promise.all(lanes);
      await writeAndReadBack(controller, 1, 9 * MIB);
      expect(controller.queues.map(({ outstanding }) => outstanding)).to.deep.equal(
        new Array(6).fill(0),
      );
    });
  });

  it('discover names what there is, as the host reached it, and leaves nothing behind', async () => {
    await withTarget({ namespaces: [{ memory: '1MiB' }] }, async ({ target, address }) => {
      const other = 'nqn.2026-11.io.nvmeof:other';
      await target.addSubsystem({ nqn: other });
      const before = liveCounters(lease());
      const { paths } = await discover({ address });
      expect(paths.map(({ kind, nqn }) => `${kind} ${nqn}`).sort()).to.deep.equal([
        'current nqn.2014-08.org.nvmexpress.discovery',
        `subsystem ${NQN}`,
        `subsystem ${other}`,
      ]);
      for (const path of paths) {
        expect(path).to.include({ transport: 'rdma', addressFamily: 'ipv4', address });
        expect(path).to.include({ service: '4420', rdmaProvider: 'rocev2', problem: undefined });
      }
      await expectLiveCounters(lease(), before);
    });
  });

  it('IPv6: target and initiator share ::1 and its device', async () => {
    const target = await Target.start({
      ports: [{ address: '::1', port: 4430 }],
      subsystems: [{ nqn: NQN, namespaces: [{ memory: '8MiB', blockSize: 4096 }] }],
    });
    try {
      const { paths } = await discover({ address: '::1', port: 4430 });
      const found = paths.find(({ nqn }) => nqn === NQN);
      expect(found).to.include({ addressFamily: 'ipv6', address: '::1', service: '4430' });
      const controller = await connect({ address: '::1', port: 4430, nqn: NQN, queues: 3 });
      expect(controller.sourceAddress).to.equal('::1');
      expect(liveCounters(lease())['live.devices']).to.equal(1);
      await writeAndReadBack(controller, 3, 5 * MIB);
      await controller.disconnect();
    } finally {
      await target.close();
    }
  });
});
