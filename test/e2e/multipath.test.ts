/**
 * A subsystem over several paths while paths fail, change and come back: ports of one target in this process, and targets in
 * processes of their own that share a file. I/O neither fails nor returns anything but what was written last.
 */
import { expect } from 'chai';
import { truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { NvmeStatusError, connectPaths } from '../../initiator/index.ts';
import type {
  ControllerBenchOptions,
  MultipathOptions,
  MultipathSubsystem,
  PathChange,
} from '../../initiator/index.ts';
import { Target } from '../../target/index.ts';
import type { TargetOptions } from '../../target/index.ts';
import { eventually, keepLiveCounters } from '../support/counters.ts';
import { NQN, failureOf, within } from '../support/in-process.ts';
import { Load } from '../support/load.ts';
import { Process, loopbackAddress, temporaryFolder } from '../support/processes.ts';

const MIB = 1 << 20;
const SOON_MS = 10_000;
/** Short, so that a path is back soon after its target is. */
const QUICK = { reconnectDelayMs: 100, keepAliveMs: 1000 } as const;

interface Scope {
  readonly target: Target;
  readonly addresses: readonly [string, string];
  readonly connect: (options?: Partial<MultipathOptions>) => Promise<MultipathSubsystem>;
}

/** A target with two ports and one namespace in memory. */
async function withTwoPorts(run: (scope: Scope) => Promise<void>): Promise<void> {
  const addresses = [loopbackAddress(), loopbackAddress()] as const;
  const target = await Target.start({
    ports: addresses.map((address) => ({ address })),
    subsystems: [{ nqn: NQN, namespaces: [{ memory: 4 * MIB }] }],
  });
  const opened: MultipathSubsystem[] = [];
  try {
    await run({
      target,
      addresses,
      connect: async (options = {}) => {
        const subsystem = await connectPaths({
          nqn: NQN,
          paths: addresses.map((address) => ({ address })),
          ...QUICK,
          ...options,
        });
        opened.push(subsystem);
        await allLive(subsystem);
        return subsystem;
      },
    });
  } finally {
    await Promise.all(opened.map((subsystem) => subsystem.disconnect()));
    await target.close();
  }
}

function makeDisk(folder: string): string {
  const path = join(folder, 'disk');
  writeFileSync(path, '');
  truncateSync(path, 4 * MIB);
  return path;
}

/** One of the targets that share the disk. */
function sharing(path: string, address: string, index: number): TargetOptions {
  return {
    ports: [{ address }],
    subsystems: [
      {
        nqn: NQN,
        cntlids: { first: 1 + 100 * index, last: 100 + 100 * index },
        namespaces: [{ path, shared: true, uuid: '0f1e2d3c-4b5a-4678-8a9b-acbdcedfe0f1' }],
      },
    ],
  };
}

function live(subsystem: MultipathSubsystem): string[] {
  return subsystem.paths.filter(({ state }) => state === 'live').map(({ endpoint }) => endpoint);
}

async function allLive(subsystem: MultipathSubsystem): Promise<void> {
  const all = (): boolean => live(subsystem).length === subsystem.paths.length;
  await eventually(all, SOON_MS, () => `live: ${JSON.stringify(subsystem.paths)}`);
}

function verifiedLoad(subsystem: MultipathSubsystem, runtimeMs: number): ControllerBenchOptions {
  return {
    nsid: 1,
    pattern: 'randrw',
    readPercent: 50,
    blockBytes: 4096,
    queueDepth: 16,
    firstLba: 0n,
    lbaCount: subsystem.namespace(1).lbaCount,
    runtimeMs,
    commandCount: 0n,
    warmupMs: 0,
    verify: true,
    bufferArenaBytes: MIB,
    seed: 1n,
  };
}

function commandsOn(target: Target, subsystem: MultipathSubsystem, address: string): number {
  const path = subsystem.paths.find(({ endpoint }) => endpoint.startsWith(address));
  return target
    .statistics()
    .queues.filter(({ cntlid }) => cntlid === path?.cntlid)
    .reduce((sum, { reads, writes }) => sum + reads + writes, 0);
}

describe('a subsystem over several paths', function () {
  this.timeout(60_000);
  keepLiveCounters();

  it('spreads its commands over them', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect();
      const load = new Load(subsystem.namespace(1));
      await load.progress(400);
      await load.stop();
      const [first, second] = addresses.map((address) => commandsOn(target, subsystem, address));
      expect(first).to.be.greaterThan(100);
      expect(second).to.be.greaterThan(100);
    });
  });

  it('goes on when a port goes, and uses it again when it is back', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect();
      const changes: PathChange[] = [];
      subsystem.on('pathState', (change) => changes.push(change));
      const load = new Load(subsystem.namespace(1));
      for (const address of addresses) {
        await load.progress();
        await target.removePort(address, 4420);
        await eventually(
          () => live(subsystem).length === 1,
          SOON_MS,
          () => 'one path',
        );
        await load.progress();
        await target.addPort({ address });
        await allLive(subsystem);
      }
      await load.stop();
      expect(changes.filter(({ to }) => to === 'reconnecting')).to.have.length(2);
      expect(changes.filter(({ to }) => to === 'live')).to.have.length(2);
    });
  });

  it('moves to the other target before one that is stopped ends its path', async () => {
    const folder = temporaryFolder();
    const path = makeDisk(folder.path);
    const addresses = [loopbackAddress(), loopbackAddress()] as const;
    const start = (index: 0 | 1): Promise<Target> =>
      Target.start(sharing(path, addresses[index], index));
    const [stops, stays] = [await start(0), await start(1)];
    const subsystem = await connectPaths({
      nqn: NQN,
      paths: addresses.map((address) => ({ address })),
      ...QUICK,
    });
    try {
      await allLive(subsystem);
      const changes: PathChange[] = [];
      subsystem.on('pathState', (change) => changes.push(change));
      const told: string[] = [];
      subsystem.on('anaChange', (_endpoint, groups) => {
        told.push(...groups.map(({ state }) => state));
      });
      const load = new Load(subsystem.namespace(1));
      await load.progress();
      await within(SOON_MS, 'the stop', stops.close());
      await load.progress();
      await load.stop();
      expect(told).to.deep.equal(['inaccessible']);
      expect(live(subsystem)).to.deep.equal([`${addresses[1]}:4420`]);
      expect(changes.map(({ to }) => to)).to.include('reconnecting');
    } finally {
      await subsystem.disconnect();
      await Promise.all([stops.close(), stays.close()]);
      folder.remove();
    }
  });

  it('follows ANA states without an error', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect();
      const [first, second] = addresses;
      const load = new Load(subsystem.namespace(1));
      const stateOf = (address: string): string | undefined =>
        subsystem.paths.find(({ endpoint }) => endpoint.startsWith(address))?.anaGroups[0]?.state;
      for (const state of ['inaccessible', 'non-optimized', 'change', 'optimized'] as const) {
        await target.setAnaState(NQN, { group: 1, state, port: `${first}:4420` });
        await eventually(
          () => stateOf(first) === state,
          SOON_MS,
          () => `${state}: ${stateOf(first) ?? ''}`,
        );
        await load.progress();
        if (state === 'optimized') continue;
        const before = commandsOn(target, subsystem, first);
        await load.progress();
        expect(commandsOn(target, subsystem, first), state).to.equal(before);
      }
      // Nothing is left for a while, then the other one is.
      await target.setAnaState(NQN, { group: 1, state: 'inaccessible' });
      await eventually(
        () => stateOf(second) === 'inaccessible',
        SOON_MS,
        () => 'both',
      );
      await target.setAnaState(NQN, { group: 1, state: 'optimized', port: `${second}:4420` });
      await load.progress();
      await load.stop();
    });
  });

  it('keeps its I/O waiting while no path is left', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect();
      const namespace = subsystem.namespace(1);
      await Promise.all(addresses.map((address) => target.removePort(address, 4420)));
      await eventually(
        () => live(subsystem).length === 0,
        SOON_MS,
        () => 'no path',
      );
      let answered = false;
      const waiting = namespace.read(0, 1).then(() => {
        answered = true;
      });
      await eventually(
        () => subsystem.counters()['live.multipath.parked'] === 1,
        SOON_MS,
        () => 'a command that waits',
      );
      expect(answered).to.equal(false);
      await target.addPort({ address: addresses[1] });
      await within(SOON_MS, 'the read', waiting);
      await target.addPort({ address: addresses[0] });
    });
  });

  it('fails it fast-io-fail-tmo after the last path went, and serves again when one is back', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect({ fastIoFailMs: 300 });
      const namespace = subsystem.namespace(1);
      await Promise.all(addresses.map((address) => target.removePort(address, 4420)));
      const began = performance.now();
      const error = await within(SOON_MS, 'an error', failureOf(namespace.read(0, 1)));
      // That it is no later than 250 ms is shown with a clock of its own (unit/initiator/multipath/path).
      expect(performance.now() - began).to.be.at.least(100);
      expect(error).to.be.instanceOf(NvmeStatusError).with.property('status', 'hostPathError');
      await target.addPort({ address: addresses[0] });
      await eventually(
        () => live(subsystem).length === 1,
        SOON_MS,
        () => 'one path',
      );
      await namespace.read(0, 1);
      await target.addPort({ address: addresses[1] });
    });
  });

  it('gives a path up after ctrl-loss-tmo', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect({ ctrlLossMs: 400 });
      await target.removePort(addresses[0], 4420);
      const began = performance.now();
      const state = (): string | undefined => subsystem.paths[0]?.state;
      await eventually(
        () => state() === 'failed',
        SOON_MS,
        () => `failed: ${state() ?? ''}`,
      );
      expect(performance.now() - began).to.be.at.least(300);
      expect(subsystem.paths[0]?.reason).to.match(/given up after 400 ms/);
      await subsystem.namespace(1).read(0, 1);
      await target.removePort(addresses[1], 4420);
      const error = await within(SOON_MS, 'an error', failureOf(subsystem.namespace(1).read(0, 1)));
      expect(error).to.have.property('status', 'hostPathError');
    });
  });

  it('takes paths and loses them while it runs', async () => {
    await withTwoPorts(async ({ addresses, connect }) => {
      const [first, second] = addresses;
      const subsystem = await connect({ paths: [{ address: first }] });
      const load = new Load(subsystem.namespace(1));
      await load.progress();
      await subsystem.addPath({ address: second });
      expect(live(subsystem)).to.have.length(2);
      await load.progress();
      await subsystem.removePath(`${first}:4420`);
      expect(live(subsystem)).to.deep.equal([`${second}:4420`]);
      await load.progress();
      await load.stop();
      const twice = await failureOf(subsystem.addPath({ address: second }));
      expect(twice).to.have.property('code', 'PATH_EXISTS');
      const unknown = await failureOf(subsystem.removePath(`${first}:4420`));
      expect(String(unknown)).to.match(/there is no path/);
    });
  });

  it('is another association for another host at the same address, and the same path twice is none', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const [address] = addresses;
      const names = ['a', 'b'].map((name) => `nqn.2026-11.io.nvmeof:host-${name}`);
      const both: MultipathSubsystem[] = [];
      for (const hostNqn of names) both.push(await connect({ paths: [{ address }], hostNqn }));
      expect(target.controllers.map(({ hostNqn }) => hostNqn)).to.deep.equal(names);
      for (const subsystem of both) {
        await subsystem.namespace(1).read(0, 1);
        const twice = await failureOf(subsystem.addPath({ address }));
        expect(twice).to.have.property('code', 'PATH_EXISTS');
      }
      const hostId = '5f0f7f0e-3b51-4c52-9c07-6b1d2a6f6c11';
      const stranger = { paths: [{ address }], hostNqn: names[0] ?? '', hostId };
      expect(String(await failureOf(connect(stranger)))).to.match(
        /host identifier 5f0f.*: the host nqn\..*:host-a is connected with the identifier/,
      );
      expect(target.controllers).to.have.length(2);
    });
  });

  it('is native load as well', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const subsystem = await connect();
      const running = subsystem.bench(verifiedLoad(subsystem, 1500));
      await target.removePort(addresses[0], 4420);
      await target.addPort({ address: addresses[0] });
      await allLive(subsystem);
      await target.removePort(addresses[1], 4420);
      await target.addPort({ address: addresses[1] });
      const result = await running;
      expect(result.firstError).to.equal('');
      expect(result.verifyErrors).to.equal(0n);
      expect(Number(result.read.errors + result.write.errors)).to.equal(0);
    });
  });
});

describe('a subsystem over a path of fewer queues than reactors', function () {
  this.timeout(60_000);
  keepLiveCounters([-1, -1]);

  it('goes on from reactors whose queues are granted no more', async () => {
    await withTwoPorts(async ({ target, addresses, connect }) => {
      const [address] = addresses;
      const paths = [{ address }];
      const subsystem = await connect({ paths, cores: [-1, -1], queues: 2 });
      const visitors = (): number => subsystem.counters()['multipath.visitors'] ?? 0;
      const running = subsystem.bench(verifiedLoad(subsystem, 3000));
      const before = visitors();
      await target.removePort(address, 4420);
      await target.addPort({ address, maxQueues: 1 });
      await allLive(subsystem);
      expect(subsystem.paths[0]).to.include({ queues: 1 });
      const result = await running;
      expect(result.firstError).to.equal('');
      expect(result.verifyErrors).to.equal(0n);
      expect(Number(result.read.errors + result.write.errors)).to.equal(0);
      expect(visitors()).to.be.greaterThan(before + 100);
    });
  });
});

describe('targets that share a file', function () {
  this.timeout(90_000);
  keepLiveCounters();

  it('lose a process to SIGKILL without an error, and take it back', async () => {
    const folder = temporaryFolder();
    const path = makeDisk(folder.path);
    const addresses = [loopbackAddress(), loopbackAddress()];
    const start = async (index: number): Promise<Process> => {
      const address = addresses[index] ?? '';
      const config = join(folder.path, `${index}.json`);
      writeFileSync(config, JSON.stringify(sharing(path, address, index)));
      const target = new Process(['target', '--config', config]);
      await target.waitFor(/nvme connect -t rdma/);
      return target;
    };
    const targets = [await start(0), await start(1)];
    const subsystem = await connectPaths({
      nqn: NQN,
      paths: addresses.map((address) => ({ address })),
      ...QUICK,
    });
    try {
      await allLive(subsystem);
      const guarantees: string[] = [];
      subsystem.on('writesReleased', (_, outcome) => guarantees.push(outcome.guarantee));
      const load = new Load(subsystem.namespace(1));
      for (const index of [0, 1, 0]) {
        await load.progress();
        await targets[index]?.stop('SIGKILL');
        await eventually(
          () => live(subsystem).length === 1,
          SOON_MS,
          () => 'one path',
        );
        await load.progress();
        targets[index] = await start(index);
        await allLive(subsystem);
      }
      await load.stop();
      expect(guarantees).to.deep.equal(Array(3).fill('cross-controller-reset'));
    } finally {
      await subsystem.disconnect();
      await Promise.all(targets.map((target) => target.stop()));
      folder.remove();
    }
  });
});
