/**
 * How associations end and begin again: queues that come back under their old number, hosts and targets that die without a
 * word, connects under load. Bounded in time, and nothing is left on the target.
 */
import { expect } from 'chai';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { connect, DisconnectedError } from '../../initiator/index.ts';
import type { Target } from '../../target/index.ts';
import {
  eventually,
  expectLiveCounters,
  keepLiveCounters,
  liveCounters,
} from '../support/counters.ts';
import { NQN, within, withTarget } from '../support/in-process.ts';
import { Load } from '../support/load.ts';
import {
  bringUpAdmin,
  bringUpIo,
  connectPrivateData,
  fabricsConnect,
  keyedSgl,
  propertyGet,
  sqe,
  statusOf,
} from '../support/nvme-host.ts';
import { loopbackAddress, Process, startTarget } from '../support/processes.ts';
import { RocePeer } from '../support/roce-peer.ts';

/** A signal stops the threads of a process one by one, a little after kill() returned. */
function isStopped(pid: number): boolean {
  const state = (thread: string): string | undefined =>
    /\) (\w)/.exec(readFileSync(`/proc/${pid}/task/${thread}/stat`, 'latin1'))?.[1];
  return readdirSync(`/proc/${pid}/task`).every((thread) => state(thread) === 'T');
}

const LOAD_WORKER = fileURLToPath(new URL('../support/load-worker.ts', import.meta.url));
const PORT = 4420;
/** A host that died silently is noticed by retransmission (half a second) or by its keep alive timeout. */
const NOTICED_MS = 10_000;
const memory = { memory: 16 << 20 } as const;

/** A host in a process of its own, under load. */
function benchHost(address: string, load: string): Process {
  return new Process(['bench', address, NQN, ...load.split(' ')]);
}

/** The reason that the target names for the end of the next controller. */
async function controllerDeleted(target: Target): Promise<string> {
  const [, reason] = (await once(target, 'controllerDeleted')) as [unknown, string];
  return reason;
}

describe('reconnecting a queue', function () {
  this.timeout(60_000);
  keepLiveCounters();

  it('the same queue id again at once, 500 times with I/O: never refused', async () => {
    await withTarget({ namespaces: [memory] }, async ({ target, address }) => {
      const refusals: string[] = [];
      target.on('refused', (_peer, reason) => refusals.push(reason));
      const { peer: admin, cntlid } = await bringUpAdmin(loopbackAddress(), address, PORT, NQN);
      const open = (): Promise<RocePeer> =>
        bringUpIo(loopbackAddress(), address, PORT, NQN, cntlid);
      let queue = await open();
      for (let round = 0; round < 500; round++) {
        const data = Buffer.alloc(512, 0xff);
        const sgl = keyedSgl(0n, data.length, queue.register(data));
        const answer = await queue.command(sqe({ opcode: 2, nsid: 1, cdw: [round], sgl }));
        expect(statusOf(answer), `read in round ${round}`).to.equal(0);
        expect(data.every((byte) => byte === 0)).to.be.true;
        // In turn: the disconnect is sent first, or the connect.
        const ended = round % 2 === 0 ? queue.disconnect() : undefined;
        const next = open();
        await (ended ?? queue.disconnect());
        await queue.close();
        queue = await next;
      }
      expect(refusals).to.deep.equal([]);
      expect(target.controllers[0]?.queues).to.have.length(1);
      await Promise.all([queue.disconnect(), admin.disconnect()]);
      await Promise.all([queue.close(), admin.close()]);
    });
  });
});

describe('connecting and disconnecting in time', function () {
  this.timeout(60_000);
  const lease = keepLiveCounters();

  it('a host connects within 2 s while others keep every data buffer busy', async () => {
    // Not memory: that is written without buffers.
    const namespaces = [{ null: 64 << 20 }];
    await withTarget({ namespaces }, async (scope) => {
      // 4 hosts with 127 writes of 256 KiB each want 127 MiB of buffers, where the target's reactor has 64.
      const hosts = spawn(
        process.execPath,
        ['--import', 'tsx', LOAD_WORKER, scope.address, NQN, '4', '262144', '127'],
        { stdio: ['ignore', 'ignore', 'pipe'] },
      );
      const ended = once(hosts, 'close');
      let said = '';
      hosts.stderr.on('data', (chunk: Buffer) => (said += chunk.toString()));
      try {
        const waits = (): number => lease().runtime.door.counters()['target.bufferWaits'] ?? 0;
        const waiting = (since: number) => (): boolean => waits() > since + 500;
        await eventually(waiting(0), 30_000, () => `commands that wait for buffers ${said}`);
        expect(scope.target.controllers).to.have.length(4);
        const controller = await within(NOTICED_MS, 'a connection', scope.connect());
        await within(NOTICED_MS, 'an admin command', controller.identify());
        // It was so all the time.
        await eventually(waiting(waits()), NOTICED_MS, () => `they wait still ${said}`);
        await within(NOTICED_MS, 'a read', controller.namespace(1).read(0, 8));
      } finally {
        hosts.kill('SIGKILL');
        await ended;
      }
    });
  });

  it('8 queues are disconnected', async () => {
    await withTarget({ namespaces: [memory] }, async (scope) => {
      const controller = await scope.connect({ queues: 8 });
      expect(controller.queues).to.have.length(8);
      await Promise.all(Array.from({ length: 64 }, (_, i) => controller.namespace(1).read(i, 8)));
      await within(NOTICED_MS, 'disconnect', controller.disconnect());
      const gone = (): boolean => scope.target.controllers.length === 0;
      await eventually(gone, NOTICED_MS, () => 'the target has noticed, too');
    });
  });

  it('both ends at once: neither hangs', async () => {
    await withTarget({ namespaces: [memory] }, async (scope) => {
      const controller = await scope.connect({ queues: 4 });
      const load = new Load(controller.namespace(1));
      await load.progress();
      const ends = Promise.all([controller.disconnect(), scope.target.close()]);
      await within(NOTICED_MS, 'both ends', ends);
      await within(NOTICED_MS, 'the end of its I/O', load.ended());
      for (const failure of load.failures) expect(failure).to.be.instanceOf(DisconnectedError);
    });
  });
});

describe('hosts that fall silent', function () {
  this.timeout(60_000);
  const lease = keepLiveCounters();

  for (const gone of [false, true]) {
    const what = gone ? 'whose process is gone' : 'that says nothing more';
    it(`a host ${what} after Connect with a keep alive of 1 s is given up`, async () => {
      await withTarget({ namespaces: [memory] }, async ({ target, address }) => {
        const peer = await RocePeer.open(loopbackAddress(), address);
        const reply = await peer.connect(PORT, connectPrivateData(0, 32));
        expect(reply.kind).to.equal('rep');
        const deleted = controllerDeleted(target);
        const begin = performance.now();
        expect(statusOf(await fabricsConnect(peer, { subnqn: NQN, kato: 1000 }))).to.equal(0);
        expect(statusOf(await propertyGet(peer, 0x08))).to.equal(0);
        if (gone) await peer.close();
        const reason = await within(NOTICED_MS, 'its end', deleted);
        expect(target.controllers).to.deep.equal([]);
        if (gone) return; // noticed by the kernel's word, or by the timeout
        expect(reason).to.equal('keep alive timer expired');
        expect(performance.now() - begin).to.be.greaterThan(990);
        await peer.disconnected();
        await peer.close();
      });
    });
  }

  for (const signal of ['SIGKILL', 'SIGSTOP'] as const) {
    it(`${signal} to a host under load: its queues and memory come back, another host goes on`, async () => {
      await withTarget({ namespaces: [memory, memory] }, async (scope) => {
        const { target } = scope;
        const controller = await scope.connect();
        const warm = new Load(controller.namespace(2));
        await warm.progress();
        await warm.stop();
        // The last answer may be known before its buffer is free: wait until only the event request is left.
        const idle = (): boolean => {
          const live = liveCounters(lease());
          const commands = [live['live.targetCommands'], live['live.host.slots']];
          return commands.every((count) => count === 1) && !('live.targetBuffers' in live);
        };
        await eventually(idle, NOTICED_MS, () => JSON.stringify(liveCounters(lease())));
        const before = liveCounters(lease());
        const load = '--rw randrw --bs 16k --qd 64 --queues 2 --buffers 8M --runtime 60';
        const host = benchHost(scope.address, `${load} --keep-alive 2s`);
        try {
          const commands = (): number =>
            lease().runtime.door.counters()['target.commands.write'] ?? 0;
          const wanted = commands() + 200;
          await eventually(
            () => commands() > wanted,
            30_000,
            () => host.stderr,
          );
          expect(target.controllers).to.have.length(2);
          const other = new Load(controller.namespace(2));
          await other.progress();
          const deleted = controllerDeleted(target);
          host.child.kill(signal);
          await within(NOTICED_MS, 'the end of the controller', deleted);
          await other.progress(500);
          await other.stop();
          expect(target.controllers.map(({ cntlid }) => cntlid)).to.deep.equal([controller.cntlid]);
          await expectLiveCounters(lease(), before);
        } finally {
          await host.stop('SIGKILL');
        }
      });
    });
  }
});

describe('a target that is killed', function () {
  this.timeout(60_000);
  keepLiveCounters();

  it('64 writes outstanding: every promise settles, "disconnected" comes once, nothing hangs', async () => {
    const target = await startTarget(['--export', 'memory:16MiB']);
    const { address, nqn } = target;
    try {
      const controller = await connect({ address, nqn, queues: 2 });
      const errors: DisconnectedError[] = [];
      controller.on('disconnected', (error) => errors.push(error));
      const namespace = controller.namespace(1);
      const buffer = controller.allocateBuffer(64 * 8192);
      await namespace.write(0, buffer.bytes);
      // It answers nothing from here on, so all of them are outstanding when it dies.
      target.process.child.kill('SIGSTOP');
      await eventually(
        () => isStopped(target.process.child.pid ?? 0),
        NOTICED_MS,
        () => 'every thread of the target stopped',
      );
      const writes = Array.from({ length: 64 }, (_, i) =>
        namespace.write(i * 16, buffer.bytes.subarray(i * 8192, (i + 1) * 8192)),
      );
      const settled = Promise.allSettled(writes);
      expect(controller.queues.reduce((sum, { outstanding }) => sum + outstanding, 0)).to.equal(64);
      target.process.child.kill('SIGKILL');
      await target.process.ended();
      for (const write of await within(NOTICED_MS, 'the end of the writes', settled)) {
        const reason: unknown = write.status === 'rejected' ? write.reason : undefined;
        expect(reason).to.be.instanceOf(DisconnectedError);
      }
      await eventually(
        () => errors.length > 0,
        NOTICED_MS,
        () => 'disconnected',
      );
      expect(controller.state).to.equal('lost');
      await within(NOTICED_MS, 'disconnect', controller.disconnect());
      expect(errors).to.have.length(1);
    } finally {
      await target.stop('SIGKILL');
    }
  });
});
