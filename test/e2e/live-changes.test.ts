/**
 * Namespaces, hosts and subsystems change under a running target with I/O in flight: every change holds when its promise
 * resolves, hosts hear of it, what went ends with an error in bounded time, and what stayed does not notice.
 */
import { expect } from 'chai';
import { readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { DisconnectedError, NvmeStatusError } from '../../initiator/index.ts';
import type { Controller, Namespace } from '../../initiator/index.ts';
import { NvmeofError } from '../../target/index.ts';
import { eventually, keepLiveCounters } from '../support/counters.ts';
import { NQN, failureOf, randomBytes, within, withTarget } from '../support/in-process.ts';
import { Load } from '../support/load.ts';
import { temporaryFolder } from '../support/processes.ts';

/** Far more than any change needs, far less than a command timeout. */
const SOON_MS = 5000;
const MIB = 1 << 20;
const memory = { memory: 4 * MIB } as const;

/** What `namespacesChanged` told, by NSID and in order. */
class Changes {
  readonly added: number[] = [];
  readonly removed: number[] = [];
  readonly changed: number[] = [];
  readonly warnings: Error[] = [];

  constructor(controller: Controller) {
    controller.on('namespacesChanged', (change) => {
      for (const kind of ['added', 'removed', 'changed'] as const) {
        this[kind].push(...change[kind].map(({ nsid }) => nsid));
      }
    });
    controller.on('warning', (warning) => this.warnings.push(warning));
  }

  async told(kind: 'added' | 'removed' | 'changed', nsids: readonly number[]): Promise<void> {
    const all = (): boolean => nsids.every((nsid) => this[kind].includes(nsid));
    await eventually(all, SOON_MS, () => `${kind} ${nsids.join(', ')}, only ${this[kind].join()}`);
  }
}

/** Each lane ended as a host expects of a namespace that went: by a status, or because the host knew. */
function expectGone(load: Load): void {
  expect(load.failures).not.to.be.empty;
  for (const failure of load.failures) {
    if (failure instanceof NvmeStatusError) expect(failure.status).to.equal('invalidNamespace');
    else expect(failure).to.be.instanceOf(DisconnectedError);
  }
}

async function works(namespace: Namespace): Promise<void> {
  const load = new Load(namespace);
  await load.progress();
  await load.stop();
}

describe('live changes of namespaces', function () {
  this.timeout(30_000);
  keepLiveCounters();

  it('a namespace that is added is told and can be used, while I/O goes on', async () => {
    await withTarget({ namespaces: [memory] }, async (scope) => {
      const controller = await scope.connect();
      const changes = new Changes(controller);
      const load = new Load(controller.namespace(1));
      await load.progress();
      expect(await scope.target.addNamespace(NQN, { ...memory, blockSize: 4096 })).to.equal(2);
      await changes.told('added', [2]);
      const second = new Load(controller.namespace(2));
      await Promise.all([second.progress(), load.progress()]);
      await Promise.all([second.stop(), load.stop()]);
      expect(changes).to.deep.include({ added: [2], removed: [], changed: [], warnings: [] });
    });
  });

  it('I/O on a namespace that is removed ends with an error; the other goes on', async () => {
    await withTarget({ namespaces: [memory, memory] }, async (scope) => {
      const controller = await scope.connect();
      const changes = new Changes(controller);
      const namespace = controller.namespace(1);
      const [gone, stays] = [new Load(namespace), new Load(controller.namespace(2))];
      await Promise.all([gone.progress(), stays.progress()]);
      await within(SOON_MS, 'removal', scope.target.removeNamespace(NQN, 1));
      await within(SOON_MS, 'the end of its I/O', gone.ended());
      expectGone(gone);
      await changes.told('removed', [1]);
      expect(namespace.removed).to.be.true;
      expect(() => controller.namespace(1)).to.throw('has no namespace 1');
      await stays.progress();
      // Its number is free at once, for other blocks.
      await scope.target.addNamespace(NQN, { ...memory, nsid: 1, blockSize: 4096 });
      await changes.told('added', [1]);
      expect(controller.namespace(1).lbaSize).to.equal(4096);
      await works(controller.namespace(1));
      await stays.progress();
      await stays.stop();
      expect(controller.state).to.equal('live');
    });
  });

  it('disabled and enabled again under I/O: gone, then back with its data', async () => {
    const folder = temporaryFolder();
    const path = join(folder.path, 'disk.img');
    const content = randomBytes(MIB);
    writeFileSync(path, content);
    try {
      await withTarget({ namespaces: [{ path }, memory] }, async (scope) => {
        const controller = await scope.connect();
        const changes = new Changes(controller);
        const stays = new Load(controller.namespace(2));
        await controller.namespace(1).compare(0, content);
        await scope.target.disableNamespace(NQN, 1);
        await changes.told('removed', [1]);
        await scope.target.enableNamespace(NQN, 1);
        await changes.told('added', [1]);
        await controller.namespace(1).compare(0, content);
        await stays.progress();
        await stays.stop();
        expect(changes).to.deep.include({ added: [1], removed: [1], changed: [], warnings: [] });
      });
    } finally {
      folder.remove();
    }
  });

  it('grown and shrunk under I/O: told, and the new end holds at once', async () => {
    await withTarget({ namespaces: [memory, memory] }, async (scope) => {
      const controller = await scope.connect();
      const changes = new Changes(controller);
      const namespace = controller.namespace(1);
      const loads = [new Load(namespace), new Load(controller.namespace(2))];
      for (const [bytes, times] of [
        [8 * MIB, 1],
        [2 * MIB, 2],
      ] as const) {
        await scope.target.resizeNamespace(NQN, 1, BigInt(bytes));
        const blocks = bytes / 512;
        await namespace.write(blocks - 1, new Uint8Array(512).fill(times));
        const error = await failureOf(namespace.read(blocks - 1, 2));
        expect(error).to.include({ code: 'NVME_LBA_OUT_OF_RANGE' });
        await eventually(
          () => namespace.lbaCount === BigInt(blocks),
          SOON_MS,
          () => `${blocks} blocks, not ${namespace.lbaCount}`,
        );
        await Promise.all(loads.map((load) => load.progress()));
      }
      await changes.told('changed', [1]);
      await Promise.all(loads.map((load) => load.stop()));
      expect(changes).to.deep.include({ added: [], removed: [], warnings: [] });
    });
  });

  it('two loops that disable and enable one namespace, and one that resizes another', async () => {
    const rounds = 50;
    await withTarget({ namespaces: [memory, memory, memory] }, async (scope) => {
      const { target } = scope;
      const controller = await scope.connect();
      const changes = new Changes(controller);
      const [resized, stays] = [controller.namespace(2), controller.namespace(3)];
      const loads = [new Load(resized), new Load(stays)];
      const toggle = async (): Promise<void> => {
        for (let i = 0; i < rounds; i++) {
          await target.disableNamespace(NQN, 1);
          await target.enableNamespace(NQN, 1);
        }
      };
      const resize = async (): Promise<void> => {
        for (let i = 0; i < rounds; i++) {
          await target.resizeNamespace(NQN, 2, BigInt((1 + (i % 4)) * MIB));
        }
      };
      await within(20_000, 'the loops', Promise.all([toggle(), toggle(), resize()]));
      await Promise.all(loads.map((load) => load.progress()));
      // Both loops have ended with an enable, in whatever order their steps fell.
      const settled = (): boolean =>
        controller.namespaces.map(({ nsid }) => nsid).join() === '1,2,3' &&
        resized.lbaCount === BigInt((2 * MIB) / 512);
      await eventually(settled, SOON_MS, () => controller.namespaces.map((n) => n.nsid).join());
      await works(controller.namespace(1));
      await Promise.all(loads.map((load) => load.stop()));
      expect(changes.warnings).to.deep.equal([]);
    });
  });

  it('three removals, one after the other, are noticed each; so are three at once', async () => {
    const namespaces = new Array(7).fill(memory);
    await withTarget({ namespaces }, async (scope) => {
      const controller = await scope.connect();
      const changes = new Changes(controller);
      for (const nsid of [1, 2, 3]) {
        await scope.target.removeNamespace(NQN, nsid);
        await changes.told('removed', [nsid]);
      }
      await Promise.all([4, 5, 6].map((nsid) => scope.target.removeNamespace(NQN, nsid)));
      await changes.told('removed', [4, 5, 6]);
      expect(changes.removed.toSorted()).to.deep.equal([1, 2, 3, 4, 5, 6]);
      expect(controller.namespaces.map(({ nsid }) => nsid)).to.deep.equal([7]);
      expect(changes).to.deep.include({ added: [], changed: [], warnings: [] });
    });
  });
});

function host(hostId: string): { readonly hostId: string; readonly hostNqn: string } {
  return { hostId, hostNqn: `nqn.2014-08.org.nvmexpress:uuid:${hostId}` };
}
const REMOVED_HOST = host('4f0b3a52-7a11-4b0e-9f5c-0d3a2f7f1c11');
const ALLOWED_HOST = host('4f0b3a52-7a11-4b0e-9f5c-0d3a2f7f1c22');

describe('live changes of subsystems and hosts', function () {
  this.timeout(30_000);
  keepLiveCounters();

  it('a subsystem removed under I/O of two hosts: they are disconnected, and may come back', async () => {
    await withTarget({ namespaces: [memory, memory] }, async (scope) => {
      const { target } = scope;
      const controllers = await Promise.all([scope.connect(), scope.connect({ queues: 4 })]);
      const lost = controllers.map(
        (controller) => new Promise((resolve) => controller.once('disconnected', resolve)),
      );
      const loads = controllers.map((controller, i) => new Load(controller.namespace(1 + i)));
      await Promise.all(loads.map((load) => load.progress()));
      const removals = [target.removeSubsystem(NQN), target.removeSubsystem(NQN)];
      const [first, second] = await within(SOON_MS, 'removal', Promise.allSettled(removals));
      expect(first?.status).to.equal('fulfilled');
      const refusal: unknown = second?.status === 'rejected' ? second.reason : undefined;
      expect(refusal).to.be.instanceOf(NvmeofError);
      expect(refusal).to.include({ code: 'SUBSYSTEM_REMOVING' });
      expect(target.controllers).to.deep.equal([]);
      for (const error of await within(SOON_MS, 'disconnected', Promise.all(lost))) {
        expect(error).to.be.instanceOf(DisconnectedError);
      }
      for (const load of loads) {
        await within(SOON_MS, 'the end of its I/O', load.ended());
        for (const error of load.failures) expect(error).to.be.instanceOf(DisconnectedError);
      }
      expect(await failureOf(scope.connect())).to.include({ code: 'CONNECT_UNKNOWN_NQN' });
      await target.addSubsystem({ nqn: NQN, namespaces: [memory] });
      await works((await scope.connect()).namespace(1));
    });
  });

  it('a host removed with writes in flight: when that has resolved, none of them lands any more', async () => {
    const folder = temporaryFolder();
    const path = join(folder.path, 'disk.img');
    writeFileSync(path, '');
    truncateSync(path, 8 * MIB);
    const subsystem = { hosts: [REMOVED_HOST.hostNqn, ALLOWED_HOST.hostNqn] };
    try {
      await withTarget({ namespaces: [{ path }, memory], subsystem }, async (scope) => {
        const controller = await scope.connect({ ...REMOVED_HOST, queues: 2 });
        const other = new Load((await scope.connect(ALLOWED_HOST)).namespace(2));
        const namespace = controller.namespace(1);
        const answered = new Uint8Array(64);
        let rounds = 0;
        // 64 lanes, each over 128 KiB of its own.
        const lanes = Array.from(answered, async (_, lane) => {
          for (let round = 1; ; round = (round % 255) + 1) {
            await namespace.write(lane * 256, new Uint8Array(128 * 1024).fill(round));
            answered[lane] = round;
            rounds += 1;
          }
        });
        const settled = Promise.allSettled(lanes);
        await eventually(
          () => rounds > 200,
          SOON_MS,
          () => `${rounds} writes`,
        );
        const rules = { allowAnyHost: false, hosts: [ALLOWED_HOST.hostNqn] };
        await within(SOON_MS, 'setHosts', scope.target.setHosts(NQN, rules));
        const snapshot = readFileSync(path);
        for (const lane of await within(SOON_MS, 'the end of its writes', settled)) {
          const reason: unknown = lane.status === 'rejected' ? lane.reason : undefined;
          expect(reason).to.be.instanceOf(DisconnectedError);
        }
        const error = await failureOf(scope.connect(REMOVED_HOST));
        expect(error).to.include({ code: 'CONNECT_HOST_NOT_ALLOWED' });
        await other.progress(500);
        await other.stop();
        expect(readFileSync(path).equals(snapshot), 'the file has changed since').to.be.true;
        // An answered write is there, or a later one of its lane.
        answered.forEach((round, lane) => {
          const value = snapshot[lane * 128 * 1024];
          expect(value, `lane ${lane}`).to.be.oneOf([round, (round % 255) + 1]);
        });
      });
    } finally {
      folder.remove();
    }
  });
});
