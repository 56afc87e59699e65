/**
 * Asymmetric namespace access over real sockets: one target with two ports, a controller at each, and targets that share a file.
 * What a state refuses is refused with its status, and when a change has resolved nothing of what it refuses happens any more.
 */
import { expect } from 'chai';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { NvmeStatusError, connect } from '../../initiator/index.ts';
import type { Controller, Namespace } from '../../initiator/index.ts';
import { Target } from '../../target/index.ts';
import type { AnaStateName, SubsystemOptions } from '../../target/index.ts';
import { keepLiveCounters } from '../support/counters.ts';
import { NQN, failureOf, within } from '../support/in-process.ts';
import { Load } from '../support/load.ts';
import { bringUpAdmin, keyedSgl, sqe, statusOf } from '../support/nvme-host.ts';
import { loopbackAddress, temporaryFolder } from '../support/processes.ts';

const MIB = 1 << 20;
const SOON_MS = 5000;
const FIRST = 4420;
const SECOND = 4421;

interface Paths {
  readonly target: Target;
  readonly address: string;
  readonly first: Controller;
  readonly second: Controller;
  readonly set: (state: AnaStateName, port?: number, group?: number) => Promise<void>;
}

async function withPaths(
  subsystem: Omit<SubsystemOptions, 'nqn'>,
  run: (paths: Paths) => Promise<void>,
): Promise<void> {
  const address = loopbackAddress();
  const target = await Target.start({
    ports: [
      { address, port: FIRST },
      { address, port: SECOND },
    ],
    subsystems: [{ nqn: NQN, ...subsystem }],
  });
  const controllers: Controller[] = [];
  try {
    for (const port of [FIRST, SECOND]) {
      controllers.push(await connect({ address, port, nqn: NQN, queues: 2 }));
    }
    const [first, second] = controllers;
    if (!first || !second) throw new Error('two controllers');
    const set = (state: AnaStateName, port?: number, group = 1): Promise<void> =>
      target.setAnaState(NQN, {
        group,
        state,
        ...(port === undefined ? {} : { port: `${address}:${port}` }),
      });
    await run({ target, address, first, second, set });
  } finally {
    await Promise.all(controllers.map((controller) => controller.disconnect()));
    await target.close();
  }
}

async function statusOfRead(namespace: Namespace): Promise<unknown> {
  const failure = await failureOf(namespace.read(0, 1));
  expect(failure).to.be.instanceOf(NvmeStatusError);
  const { status, dnr } = failure as NvmeStatusError;
  return dnr ? `${String(status)} dnr` : status;
}

/** A file of 1 MiB, for the tests of a `describe`. */
function keepFile(): () => string {
  let folder: ReturnType<typeof temporaryFolder> | undefined;
  const path = (): string => join(folder?.path ?? '', 'disk.img');
  beforeEach(() => {
    folder = temporaryFolder();
    writeFileSync(path(), Buffer.alloc(MIB));
  });
  afterEach(() => folder?.remove());
  return path;
}

describe('asymmetric namespace access', function () {
  this.timeout(30_000);
  keepLiveCounters();
  const file = keepFile();

  it('a host finds ANA offered, and its group in Identify Namespace', async () => {
    await withPaths({ namespaces: [{ memory: MIB, anaGroup: 3 }] }, async ({ first }) => {
      expect(first.data).to.include({ cmicAna: true, cmicMultiPort: true, nanagrpid: 128 });
      expect((await first.identifyNamespace(1)).anagrpid).to.equal(3);
    });
  });

  it('a state of the configuration holds for the first command of the first host', async () => {
    // The reactor's engine is made when the first of them connects, and learns it then.
    const subsystem: Omit<SubsystemOptions, 'nqn'> = {
      namespaces: [{ memory: MIB }],
      ana: [{ group: 1, state: 'inaccessible' }],
    };
    await withPaths(subsystem, async ({ first, second, set }) => {
      expect(await statusOfRead(first.namespace(1))).to.equal('anaInaccessible');
      expect(await statusOfRead(second.namespace(1))).to.equal('anaInaccessible');
      await set('optimized', SECOND);
      await second.namespace(1).read(0, 1);
      expect(await statusOfRead(first.namespace(1))).to.equal('anaInaccessible');
    });
  });

  it('each refusing state has its status, at its port and for its group only', async () => {
    const namespaces = [{ memory: MIB }, { memory: MIB, anaGroup: 2 }];
    await withPaths({ namespaces }, async ({ first, second, set }) => {
      for (const [state, status] of [
        ['inaccessible', 'anaInaccessible'],
        ['change', 'anaTransition'],
        ['persistent-loss', 'anaPersistentLoss'],
      ] as const) {
        await set(state, FIRST);
        expect(await statusOfRead(first.namespace(1))).to.equal(status);
        await first.namespace(2).read(0, 1);
        await second.namespace(1).read(0, 1);
      }
      for (const state of ['non-optimized', 'optimized'] as const) {
        await set(state, FIRST);
        await first.namespace(1).read(0, 1);
      }
    });
  });

  it('a port closes under load: its I/O ends with the status, other ports and groups do not notice', async () => {
    const namespaces = [{ memory: MIB }, { memory: MIB, anaGroup: 2 }];
    await withPaths({ namespaces }, async ({ first, second, set }) => {
      const refused = new Load(first.namespace(1));
      const other = new Load(first.namespace(2));
      await refused.progress();
      await within(SOON_MS, 'closing', set('inaccessible', FIRST));
      await within(SOON_MS, 'its lanes', refused.ended());
      expect(refused.failures.length).to.equal(16);
      for (const failure of refused.failures) {
        expect(failure).to.include({ status: 'anaInaccessible', dnr: false });
      }
      await other.progress();
      const moved = new Load(second.namespace(1));
      await moved.progress();
      await Promise.all([other, moved].map((load) => load.stop()));
      await set('optimized', FIRST);
      const back = new Load(first.namespace(1));
      await back.progress();
      await back.stop();
    });
  });

  it('states that flap 100 times a second leave no command without an answer, and nothing behind', async () => {
    await withPaths({ namespaces: [{ memory: MIB }] }, async ({ first, second, set }) => {
      let [served, refused, running] = [0, 0, true];
      const lane = async (paths: readonly Namespace[], lba: number): Promise<void> => {
        const data = new Uint8Array(4096);
        for (let at = 0; running;) {
          try {
            await paths[at]?.write(lba, data.fill(served % 251));
            served++;
          } catch (error) {
            expect(error).to.be.instanceOf(NvmeStatusError);
            expect(['anaInaccessible', 'anaTransition']).to.include(
              (error as NvmeStatusError).status,
            );
            refused++;
            at = 1 - at;
          }
        }
      };
      const paths = [first.namespace(1), second.namespace(1)];
      const lanes = Promise.all(Array.from({ length: 16 }, (_, i) => lane(paths, i * 8)));
      const changes: Promise<void>[] = [];
      for (let turn = 0; turn < 200; turn++) {
        const port = turn % 4 < 2 ? FIRST : SECOND;
        const state = turn % 2 === 1 ? 'optimized' : turn % 8 < 4 ? 'inaccessible' : 'change';
        changes.push(set(state, port));
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
      await within(SOON_MS, 'all changes', Promise.all(changes));
      running = false;
      await within(SOON_MS, 'all lanes', lanes);
      expect(served).to.be.greaterThan(1000);
      expect(refused).to.be.greaterThan(100);
      await Promise.all(paths.map((namespace) => namespace.read(0, 8)));
    });
  });

  it('a namespace that moves to a closed group closes with it', async () => {
    await withPaths({ namespaces: [{ memory: MIB }] }, async ({ target, first, second, set }) => {
      await set('inaccessible', FIRST, 5);
      const load = new Load(first.namespace(1));
      await load.progress();
      await target.setAnaGroup(NQN, 1, 5);
      await within(SOON_MS, 'its lanes', load.ended());
      expect(await statusOfRead(first.namespace(1))).to.equal('anaInaccessible');
      await second.namespace(1).read(0, 1);
      await target.setAnaGroup(NQN, 1, 1);
      await first.namespace(1).read(0, 1);
    });
  });

  it('a host made by hand reads the log and is told of a change', async () => {
    await withPaths({ namespaces: [{ memory: MIB }] }, async ({ address, set }) => {
      const { peer } = await bringUpAdmin(loopbackAddress(), address, SECOND, NQN);
      try {
        const page = Buffer.alloc(4096, 0xff);
        const readLog = async (): Promise<void> => {
          page.fill(0xff);
          const sgl = keyedSgl(0n, page.length, peer.register(page));
          const cqe = await peer.command(
            sqe({ opcode: 2, nsid: 0xffffffff, cdw: [0x0c | (1023 << 16)], sgl }),
          );
          expect(statusOf(cqe)).to.equal(0);
        };
        await readLog();
        // One group, number 1, with one namespace, optimized.
        expect(page.readUInt16LE(8)).to.equal(1);
        expect([
          page.readUInt32LE(16),
          page.readUInt32LE(20),
          page[32],
          page.readUInt32LE(48),
        ]).to.deep.equal([1, 1, 1, 1]);
        expect(statusOf(await peer.command(sqe({ opcode: 9, cdw: [0x0b, 0x900] })))).to.equal(0);
        const event = peer.command(sqe({ opcode: 0x0c }));
        await set('inaccessible', SECOND);
        expect((await event).readUInt32LE(0)).to.equal(0x0c0302);
        await readLog();
        expect(page[32]).to.equal(3);
      } finally {
        await peer.close();
      }
    });
  });

  it('two targets that share a file are two controllers of one subsystem', async () => {
    const start = (address: string, first: number): Promise<Target> =>
      Target.start({
        ports: [{ address }],
        subsystems: [
          {
            nqn: NQN,
            cntlids: { first, last: first + 99 },
            namespaces: [{ path: file(), shared: true }],
          },
        ],
      });
    const addresses = [loopbackAddress(), loopbackAddress()];
    const targets: Target[] = [];
    const paths: Controller[] = [];
    try {
      for (const [index, address] of addresses.entries()) {
        targets.push(await start(address, 1 + 100 * index));
        paths.push(await connect({ address, nqn: NQN }));
      }
      expect(paths.map(({ cntlid }) => cntlid)).to.deep.equal([1, 101]);
      const [one, two] = paths;
      if (!one || !two) throw new Error('two paths');
      expect(one.data.sn).to.equal(two.data.sn);
      expect(one.namespace(1).ids).to.deep.equal(two.namespace(1).ids);
      const data = new Uint8Array(4096).fill(0x5a);
      await one.namespace(1).write(8, data);
      expect(Buffer.from(await two.namespace(1).read(8, 8)).equals(data)).to.equal(true);
    } finally {
      await Promise.all(paths.map((path) => path.disconnect()));
      await Promise.all(targets.map((target) => target.close()));
    }
  });
});

for (const [kind, cores] of [
  ['memory', [-1]],
  ['memory', [-1, -1]],
  ['file', [-1, -1]],
] as const) {
  describe(`a port that has closed: ${kind}, reactors: ${cores.length}`, function () {
    this.timeout(30_000);
    keepLiveCounters(cores);
    const file = keepFile();

    it('lets no write land that came in there', async () => {
      const namespaces = [kind === 'file' ? { path: file() } : { memory: MIB }];
      await withPaths({ namespaces }, async ({ first, second, set }) => {
        const [here, there] = [first.namespace(1), second.namespace(1)];
        const old = new Uint8Array(64 * 1024).fill(0xee);
        let refused = 0;
        for (let round = 1; round <= 40; round++) {
          // Larger than a capsule: fetched, while the port closes.
          const writes = Array.from({ length: 12 }, () =>
            here.write(0, old).catch((error: unknown) => {
              expect(error).to.include({ status: 'anaInaccessible' });
              refused++;
            }),
          );
          if (round % 2 === 0) await writes[round % 12];
          await within(SOON_MS, 'closing', set('inaccessible', FIRST));
          const mine = new Uint8Array(old.length).fill(round);
          await there.write(0, mine);
          await Promise.all(writes);
          const found = await there.read(0, old.length / 512);
          expect(Buffer.from(found).equals(mine), `round ${round}`).to.equal(true);
          await set('optimized', FIRST);
        }
        expect(refused).to.be.greaterThan(0);
      });
    });
  });
}
