/**
 * docs/stale-writes.md: a write that is held in a slow backing on one path never lands after what the host writes on another path once
 * its controller was fenced. One target, and two that share a file: alive, stopped and killed. (CASES 97, spdk#3593)
 */
import { expect } from 'chai';
import { once } from 'node:events';
import { openSync, readSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { connect, connectPaths } from '../../initiator/index.ts';
import type { Controller, HeldWrites } from '../../initiator/index.ts';
import { impactedBy, peerOf } from '../../initiator/multipath/fence-peer.ts';
import { fenceController } from '../../initiator/multipath/fence.ts';
import type { FenceOutcome, ImpactedController } from '../../initiator/multipath/fence.ts';
import { systemClock } from '../../native/common/clock.ts';
import { keepLiveCounters } from '../support/counters.ts';
import { failureOf, within, withTarget } from '../support/in-process.ts';
import { Process, loopbackAddress, temporaryFolder } from '../support/processes.ts';

const NQN = 'nqn.2026-11.io.nvmeof:stale-writes';
const HOST = {
  hostNqn: 'nqn.2014-08.org.nvmexpress:uuid:5c6e2a52-3cfd-4b3c-9d58-0a4c7f3d9a97',
  hostId: '5c6e2a52-3cfd-4b3c-9d58-0a4c7f3d9a97',
};
const WORKER = fileURLToPath(new URL('../support/stale-writer.ts', import.meta.url));
const [X, Y] = [Buffer.alloc(512, 'X'), Buffer.alloc(512, 'Y')];
/** Far less than the keep alive timeout: nothing here waits for that. */
const SOON_MS = 3000;
const QUIESCE_MS = 500;

function fence(
  impacted: ImpactedController,
  through: Controller,
  signal?: AbortSignal,
): Promise<FenceOutcome> {
  const options = { clock: systemClock, ...(signal ? { signal } : {}) };
  return fenceController(impacted, [peerOf(through)], options);
}

function expectReset(outcome: FenceOutcome): void {
  expect(outcome.guarantee).to.equal('cross-controller-reset');
}

/** Two targets on one file; the first holds every write for a while. */
class SharedFile {
  readonly folder = temporaryFolder();
  readonly path = join(this.folder.path, 'shared.img');
  readonly targets: Process[] = [];
  readonly controllers: Controller[] = [];
  readonly #fd: number;

  constructor() {
    writeFileSync(this.path, '');
    truncateSync(this.path, 1 << 20);
    this.#fd = openSync(this.path, 'r');
  }

  /** Returns its address. */
  async start(first: number, delayWritesMs: number): Promise<string> {
    const address = loopbackAddress();
    const config = join(this.folder.path, `target-${first}.json`);
    const uuid = '7d9c1f4e-3a52-4c7e-9d1b-000000000097';
    writeFileSync(
      config,
      JSON.stringify({
        ports: [{ address }],
        subsystems: [
          {
            nqn: NQN,
            cntlids: { first, last: first + 99 },
            commandQuiesceMs: QUIESCE_MS,
            namespaces: [{ path: this.path, shared: true, uuid, delayWritesMs }],
          },
        ],
      }),
    );
    const target = new Process(['target', '--config', config]);
    this.targets.push(target);
    await target.waitFor(/nvme connect -t rdma/);
    return address;
  }

  async connect(address: string, keepAliveMs = 5000): Promise<Controller> {
    const controller = await connect({ address, nqn: NQN, ...HOST, keepAliveMs });
    this.controllers.push(controller);
    return controller;
  }

  /** The first byte, as whoever reads the file sees it. */
  get content(): string {
    const byte = Buffer.alloc(1);
    readSync(this.#fd, byte, 0, 1, 0);
    return byte.toString('latin1');
  }

  async end(): Promise<void> {
    for (const { child } of this.targets) child.kill('SIGCONT');
    await Promise.all(this.controllers.map((controller) => controller.disconnect()));
    await Promise.all(this.targets.map((target) => target.stop('SIGKILL')));
    this.folder.remove();
  }
}

describe('stale writes', function () {
  this.timeout(60_000);

  describe('one target', () => {
    keepLiveCounters();

    it('a write held in the backing has landed when the other path says so; the next one wins', async () => {
      const namespaces = [{ memory: 1 << 20, delayWritesMs: 700 }];
      await withTarget({ namespaces }, async (scope) => {
        const [lost, other] = [await scope.connect(HOST), await scope.connect(HOST)];
        const started = performance.now();
        const failure = failureOf(lost.namespace(1).write(0, X));
        const life = impactedBy(lost, systemClock.now());
        // It is in the backing when a later command of its queue has been answered.
        await lost.namespace(1).read(1, 1);
        expectReset(await within(SOON_MS, 'the fence', fence(life, other)));
        expect(performance.now() - started).to.be.at.least(699);
        expect((await other.namespace(1).read(0, 1))[0]).to.equal(X[0]);
        await other.namespace(1).write(0, Y);
        expect((await other.namespace(1).read(0, 1))[0]).to.equal(Y[0]);
        expect(await failure).to.be.instanceOf(Error);
        expect(lost.state).to.equal('lost');
      });
    });

    it('a host process that hangs loses its controller as fast', async () => {
      const namespaces = [{ memory: 1 << 20, delayWritesMs: 1000 }];
      await withTarget({ namespaces }, async (scope) => {
        const other = await scope.connect(HOST);
        const hanging = new Process(
          ['--import', 'tsx', WORKER, scope.address, other.nqn, HOST.hostNqn, HOST.hostId],
          {},
          process.execPath,
        );
        try {
          const [line] = await hanging.waitFor(/\{.*\}/);
          await hanging.waitFor(/sent/);
          hanging.child.kill('SIGSTOP');
          const { cirn, ...life } = JSON.parse(line) as {
            cntlid: number;
            ciu: number;
            cirn: string;
          };
          const impacted = { ...impactedBy(other, systemClock.now()), ...life, cirn: BigInt(cirn) };
          expectReset(await within(SOON_MS, 'the fence', fence(impacted, other)));
          expect((await other.namespace(1).read(0, 1))[0]).to.equal(X[0]);
          await other.namespace(1).write(0, Y);
          hanging.child.kill('SIGCONT');
          expect((await other.namespace(1).read(0, 1))[0]).to.equal(Y[0]);
        } finally {
          hanging.child.kill('SIGCONT');
          await hanging.stop('SIGKILL');
        }
      });
    });
  });

  describe('two targets on one file', () => {
    let file: SharedFile;
    let lost: Controller;
    let other: Controller;
    let life: ImpactedController;
    /** Undefined: X was answered, too. */
    let failure: Promise<unknown>;

    /** X is held by the first target for that long. */
    async function begin(delayWritesMs: number, keepAliveMs?: number): Promise<void> {
      const [slow, fast] = [await file.start(1, delayWritesMs), await file.start(101, 0)];
      [lost, other] = [await file.connect(slow, keepAliveMs), await file.connect(fast)];
      expect([lost.cntlid, other.cntlid]).to.deep.equal([1, 101]);
      failure = lost
        .namespace(1)
        .write(0, X)
        .then(
          () => undefined,
          (error: unknown) => error,
        );
      life = impactedBy(lost, systemClock.now());
      await lost.namespace(1).read(1, 1);
    }

    beforeEach(() => {
      file = new SharedFile();
    });
    afterEach(() => file.end());

    it('the one that is asked has the other one end the controller, and waits for the write', async () => {
      await begin(1500);
      expect(file.content).to.equal('\0');
      expectReset(await within(SOON_MS, 'the fence', fence(life, other)));
      expect(file.content).to.equal('X');
      await other.namespace(1).write(0, Y);
      expect(file.content).to.equal('Y');
      expect(await failure).to.be.instanceOf(Error);
      // Its other controllers, and new ones, are not touched.
      const again = await file.connect(lost.endpoint.replace(/:\d+$/, ''));
      expect((await again.namespace(1).read(0, 1))[0]).to.equal(Y[0]);
    });

    it('a target that was killed cannot write any more, and that is known at once', async () => {
      await begin(20_000);
      await file.targets[0]?.stop('SIGKILL');
      expectReset(await within(SOON_MS, 'the fence', fence(life, other)));
      await other.namespace(1).write(0, Y);
      expect(file.content).to.equal('Y');
      expect(await failure).to.be.instanceOf(Error);
    });

    it('one that is stopped is not believed to be gone; when it goes on, its controller ends', async () => {
      await begin(500);
      const stopped = file.targets[0]?.child;
      stopped?.kill('SIGSTOP');
      const giveUp = new AbortController();
      const undecided = failureOf(fence(life, other, giveUp.signal));
      const page = (): Promise<Uint8Array> => peerOf(other).readLog(false);
      const entries = async (): Promise<number | undefined> => (await page())[0];
      const log = async (): Promise<number | undefined> => (await page())[14];
      const inProgress = async (): Promise<void> => {
        while ((await log()) !== 0 || (await entries()) !== 1) continue;
      };
      await within(SOON_MS, 'an entry in progress', inProgress());
      // Its write was due long ago.
      await new Promise((resolve) => setTimeout(resolve, 1000));
      expect(await log()).to.equal(0);
      expect(file.content).to.equal('\0');
      giveUp.abort(new Error('given up'));
      expect(String(await undecided)).to.contain('given up');
      stopped?.kill('SIGCONT');
      expectReset(await within(SOON_MS, 'the fence', fence(life, other)));
      expect(file.content).to.equal('X');
      await other.namespace(1).write(0, Y);
      expect(file.content).to.equal('Y');
      await failure;
    });

    /** Nobody can tell of the stopped target, so the host goes by the time: then Y, and the target goes on. */
    async function goesOn(stopped: Process): Promise<void> {
      await failure;
      expect(lost.state).to.equal('lost');
      life = impactedBy(lost, systemClock.now());
      const outcome = await fenceController(life, [], { clock: systemClock });
      const waitedMs = 2 * 1000 + QUIESCE_MS;
      expect(outcome).to.deep.equal({ guarantee: 'quiesce-time', waitedMs, promised: true });
      expect(file.content).to.equal('\0');
      await other.namespace(1).write(0, Y);
      stopped.child.kill('SIGCONT');
      // Nothing of that controller is in the backing any more.
      await stopped.waitFor(/host gone/);
      expect(file.content).to.equal('Y');
      expect(stopped.stderr).to.contain('keep alive timer expired');
      const again = await file.connect(lost.endpoint.replace(/:\d+$/, ''));
      expect((await again.namespace(1).read(0, 1))[0]).to.equal(Y[0]);
    }

    it('one that was stopped for longer than all time does not write what its backing held', async () => {
      await begin(2000, 1000);
      const [stopped] = file.targets as [Process];
      stopped.child.kill('SIGSTOP');
      await goesOn(stopped);
    });

    it('nor what waited in its socket, with a Keep Alive', async () => {
      const [slow, fast] = [await file.start(1, 0), await file.start(101, 0)];
      [lost, other] = [await file.connect(slow, 1000), await file.connect(fast)];
      const [stopped] = file.targets as [Process];
      stopped.child.kill('SIGSTOP');
      failure = failureOf(lost.namespace(1).write(0, X));
      await goesOn(stopped);
    });

    it('proven: a write waits while the stopped target stands, and goes on when that is ended', async () => {
      const [slow, fast] = [await file.start(1, 0), await file.start(101, 0)];
      const [stopped] = file.targets as [Process];
      const subsystem = await connectPaths({
        ...{ nqn: NQN, ...HOST, keepAliveMs: 1000, writes: 'proven' },
        paths: [{ address: slow, preferred: true }, { address: fast }],
      });
      try {
        const live = (): number => subsystem.paths.filter(({ state }) => state === 'live').length;
        while (live() < 2) await once(subsystem, 'pathState');
        const held = once(subsystem, 'writesHeld') as Promise<[string, HeldWrites]>;
        const released = once(subsystem, 'writesReleased') as Promise<[string, FenceOutcome]>;
        stopped.child.kill('SIGSTOP');
        let done = false;
        const write = subsystem
          .namespace(1)
          .write(0, X)
          .then(() => {
            done = true;
          });
        const [endpoint, { cntlid, writes }] = await held;
        expect([endpoint, cntlid, writes]).to.deep.equal([`${slow}:4420`, 1, 1]);
        // Beyond all that the time would say.
        await new Promise((resolve) => setTimeout(resolve, 2 * 1000 + QUIESCE_MS));
        expect(done).to.equal(false);
        expect(file.content).to.equal('\0');
        await stopped.stop('SIGKILL');
        expectReset((await released)[1]);
        await write;
        expect(file.content).to.equal('X');
      } finally {
        await subsystem.disconnect();
      }
    });

    it('without another path the time decides', async () => {
      await begin(200);
      const outcome = await fenceController({ ...life, keepAliveMs: 1000, cqtMs: 500 }, [], {
        clock: systemClock,
      });
      expect(outcome).to.deep.equal({ guarantee: 'quiesce-time', waitedMs: 2500, promised: true });
      expect(await failure).to.be.undefined;
    });
  });
});
