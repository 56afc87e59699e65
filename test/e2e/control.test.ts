/**
 * A target process that is changed over its control socket while hosts run I/O: by the commands people type, and by clients that do
 * not behave.
 */
import { expect } from 'chai';
import { existsSync, readFileSync, statSync, truncateSync, writeFileSync } from 'node:fs';
import { connect as connectSocket } from 'node:net';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import {
  DisconnectedError,
  NvmeStatusError,
  ProtocolError,
  connect,
  discover,
} from '../../initiator/index.ts';
import type { Controller } from '../../initiator/index.ts';
import { RemoteError, call } from '../../tools/cli/control/client.ts';
import { eventually } from '../support/counters.ts';
import { failureOf, randomBytes, within } from '../support/in-process.ts';
import { Load } from '../support/load.ts';
import { NotifySocket } from '../support/notify-socket.ts';
import { Process, loopbackAddress, nvmeof, temporaryFolder } from '../support/processes.ts';

const NQN = 'nqn.2024-01.com.example:live';
const SECOND = 'nqn.2024-01.com.example:second';
const MIB = 1 << 20;
const SOON_MS = 5000;
const READY = /Stop with Ctrl-C/;

describe('live changes over the control socket', function () {
  this.timeout(60_000);
  let folder = temporaryFolder();
  let address = '';
  let socket = '';
  let config = '';
  const processes: Process[] = [];
  const controllers: Controller[] = [];

  beforeEach(() => {
    folder = temporaryFolder();
    address = loopbackAddress();
    socket = join(folder.path, 'target.sock');
    config = join(folder.path, 'target.json');
  });
  afterEach(async () => {
    await Promise.all(controllers.splice(0).map((controller) => controller.disconnect()));
    await Promise.all(processes.splice(0).map((one) => one.stop()));
    folder.remove();
  });

  /** A file of zeros. */
  const image = (name: string, bytes = 4 * MIB): string => {
    const path = join(folder.path, name);
    writeFileSync(path, '');
    truncateSync(path, bytes);
    return path;
  };
  const write = (subsystems: object[], more: object = {}): void => {
    writeFileSync(config, JSON.stringify({ ports: [{ address }], subsystems, ...more }));
  };
  const start = async (env: NodeJS.ProcessEnv = {}, ...more: string[]): Promise<Process> => {
    const one = new Process(['target', '--config', config, '--control', socket, ...more], env);
    processes.push(one);
    await one.waitFor(READY);
    return one;
  };
  const host = async (nqn = NQN, at = address): Promise<Controller> => {
    const controller = await connect({ address: at, nqn });
    controllers.push(controller);
    return controller;
  };
  const rpc = (method: string, params: object = {}): Promise<unknown> =>
    call(socket, method, params);
  /** A command that people type; it must succeed. */
  const typed = async (...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await nvmeof([...args, '--socket', socket]);
    expect(stderr, args.join(' ')).to.equal('');
    expect(code, args.join(' ')).to.equal(0);
    return stdout;
  };
  const codeOf = async (promise: Promise<unknown>): Promise<string> => {
    const error = await failureOf(promise);
    if (!(error instanceof RemoteError)) throw error;
    return (error.error.data as { code: string }).code;
  };

  it('commands change what hosts see under I/O, and a restart with what was saved is the same', async () => {
    const first = image('a.img');
    write([{ nqn: NQN, namespaces: [{ path: first }] }]);
    const target = await start();
    expect(statSync(socket).mode & 0o777).to.equal(0o600);
    const controller = await host();
    const load = new Load(controller.namespace(1));
    await load.progress();
    await typed('namespace', 'add', NQN, image('b.img', MIB));
    await eventually(
      () => controller.namespaces.length === 2,
      SOON_MS,
      () => 'namespace 2',
    );
    const second = controller.namespace(2);
    const data = randomBytes(4096);
    await second.write(0, data);
    await typed('namespace', 'resize', NQN, '2', '8MiB');
    await eventually(
      () => second.lbaCount === 16_384n,
      SOON_MS,
      () => 'its new size',
    );
    await second.write(16_383, new Uint8Array(512).fill(7));
    await typed('namespace', 'protect', NQN, '2');
    // The answer has come: it holds for this write.
    const refused = await failureOf(second.write(0, new Uint8Array(512)));
    expect(refused).to.be.instanceOf(NvmeStatusError);
    expect(refused).to.include({ sct: 0, sc: 0x20 });
    await second.compare(0, data);
    await eventually(
      () => second.writeProtected,
      SOON_MS,
      () => 'that it is told',
    );
    expect(await typed('controllers', NQN))
      .to.contain(NQN)
      .and.to.contain('ready');
    await typed('subsystem', 'add', SECOND, '--export', 'memory:1MiB', '--serial', 'S2');
    await typed('config', 'save');
    await load.progress();
    await load.stop();
    const before = (await rpc('config.get')) as object;
    expect((await target.stop()).code).to.equal(0);
    expect(existsSync(socket)).to.be.false;
    processes.length = 0;
    controllers.length = 0;

    await start();
    expect(await rpc('config.get')).to.deep.equal(before);
    const again = await host();
    expect(again.namespaces.map(({ nsid, bytes }) => [nsid, Number(bytes)])).to.deep.equal([
      [1, 4 * MIB],
      [2, 8 * MIB],
    ]);
    expect(again.namespace(2).writeProtected).to.be.true;
    await again.namespace(2).compare(0, data);
    await rpc('namespace.protect', { nqn: NQN, nsid: 2, writeProtected: false });
    await again.namespace(2).write(0, new Uint8Array(512));
    expect((await host(SECOND)).namespaces.length).to.equal(1);
  });

  it('two clients resize one namespace, and remove and add another, under load', async () => {
    write([
      {
        nqn: NQN,
        namespaces: [
          { nsid: 1, memory: 4 * MIB },
          { nsid: 2, memory: 4 * MIB },
          { nsid: 3, memory: 4 * MIB },
        ],
      },
    ]);
    await start();
    const controller = await host();
    const loads = [1, 3].map((nsid) => new Load(controller.namespace(nsid)));
    const goner = new Load(controller.namespace(2), 32);
    await Promise.all([...loads, goner].map((load) => load.progress()));
    const rounds = 100;
    const resize = async (): Promise<void> => {
      for (let i = 0; i < rounds; i++) {
        await rpc('namespace.resize', { nqn: NQN, nsid: 1, size: (1 + (i % 4)) * MIB });
      }
    };
    const replace = async (): Promise<void> => {
      for (let i = 0; i < rounds; i++) {
        await rpc('namespace.remove', { nqn: NQN, nsid: 2 });
        const namespace = { nsid: 2, memory: 4 * MIB, blockSize: i % 2 === 0 ? 4096 : 512 };
        await rpc('namespace.add', { nqn: NQN, namespace });
      }
    };
    await within(30_000, 'the loops', Promise.all([resize(), replace()]));
    await within(SOON_MS, 'the end of its I/O', goner.ended());
    // Where it missed that the namespace was away, it names 512 bytes for a block of 4096.
    const expected = ['invalidNamespace', 'sglDataLength'];
    for (const failure of goner.failures) {
      if (failure instanceof NvmeStatusError) expect(expected).to.include(failure.status);
      else expect(failure).to.be.instanceOf(DisconnectedError);
    }
    await Promise.all(loads.map((load) => load.progress()));
    await Promise.all(loads.map((load) => load.stop()));
  });

  it('a namespace that comes back with other blocks is identified anew, also under its old UUID', async () => {
    const uuid = '0b1e8b9a-6f2c-4a34-9d33-0a6b0c2e1f55';
    const path = image('a.img');
    write([{ nqn: NQN, namespaces: [{ nsid: 1, path, uuid }] }]);
    await start();
    const controller = await host();
    expect(controller.namespace(1).lbaSize).to.equal(512);
    await rpc('namespace.remove', { nqn: NQN, nsid: 1 });
    await rpc('namespace.add', { nqn: NQN, namespace: { nsid: 1, path, uuid, blockSize: 4096 } });
    await eventually(
      () => controller.namespaces[0]?.lbaSize === 4096,
      SOON_MS,
      () => 'blocks of 4096 bytes',
    );
    const load = new Load(controller.namespace(1));
    await load.progress();
    await load.stop();
  });

  it('a subsystem and a port go under I/O, twice at once, and come back at once', async () => {
    write([
      { nqn: NQN, namespaces: [{ memory: 4 * MIB }] },
      { nqn: SECOND, namespaces: [{ memory: 4 * MIB }] },
    ]);
    await start();
    await rpc('port.add', { address, port: 4421 });
    const stays = new Load((await host(SECOND)).namespace(1));
    for (let round = 0; round < 3; round++) {
      const load = new Load((await host()).namespace(1));
      await load.progress();
      const removals = [1, 2].map(() => rpc('subsystem.remove', { nqn: NQN }));
      const [first, second] = await within(SOON_MS, 'removal', Promise.allSettled(removals));
      expect([first?.status, second?.status].sort()).to.deep.equal(['fulfilled', 'rejected']);
      await within(SOON_MS, 'the end of its I/O', load.ended());
      for (const failure of load.failures) expect(failure).to.be.instanceOf(DisconnectedError);
      expect(await codeOf(rpc('port.add', { address, port: 4421, queueDepth: 64 }))).to.equal(
        'PORT_EXISTS',
      );
      await rpc('port.remove', { address, port: 4421 });
      await rpc('port.add', { address, port: 4421 });
      await rpc('subsystem.add', { nqn: NQN, namespaces: [{ memory: 4 * MIB }] });
    }
    await stays.progress();
    await stays.stop();
  });

  it('a port on an address of another process is refused with who has it, and taken when it is free', async () => {
    write([{ nqn: NQN, namespaces: [{ memory: MIB }] }]);
    await start();
    const busy = loopbackAddress();
    const other = new Process([
      'target',
      '--export',
      'null:1GiB',
      '--listen',
      busy,
      '--no-control',
    ]);
    processes.push(other);
    await other.waitFor(READY);
    const error = await failureOf(rpc('port.add', { address: busy }));
    expect((error as Error).message)
      .to.contain(busy)
      .and.to.contain(String(other.child.pid));
    expect(await codeOf(rpc('port.add', { address: busy }))).to.equal('DEVICE_OPEN');
    await other.stop();
    await rpc('port.add', { address: busy });
    expect((await host(NQN, busy)).namespaces.length).to.equal(1);
  });

  it('referrals come and go a hundred times while a host discovers', async () => {
    write([{ nqn: NQN }]);
    await start();
    const stop = new AbortController();
    const generations: bigint[] = [];
    const discovering = (async () => {
      while (!stop.signal.aborted) {
        const log = await discover({ address }).catch((error: unknown) => {
          // It read while it changed, again and again, and says so.
          if (error instanceof ProtocolError) return undefined;
          throw error;
        });
        if (log !== undefined) generations.push(log.generation);
      }
    })();
    const referral = { address: '192.0.2.8', port: 8009, transport: 'tcp' };
    const { generation: first } = await discover({ address });
    for (let round = 0; round < 100; round++) {
      await rpc('referral.add', referral);
      await rpc('referral.remove', referral);
    }
    stop.abort();
    await discovering;
    const last = await discover({ address });
    expect(last.generation - first).to.equal(200n);
    expect(generations).to.deep.equal(generations.toSorted((a, b) => Number(a - b)));
    expect(last.paths.some(({ kind }) => kind === 'referral')).to.be.false;
    await rpc('referral.add', referral);
    const [found] = (await discover({ address })).paths.filter(({ kind }) => kind === 'referral');
    expect(found).to.deep.include({
      transport: 'tcp',
      address: '192.0.2.8',
      service: '8009',
      problem: undefined,
    });
  });

  it('two thousand clients that stay keep neither hosts nor I/O from going on', async () => {
    write([{ nqn: NQN, namespaces: [{ memory: 4 * MIB }, { memory: 4 * MIB, nsid: 2 }] }]);
    const target = await start();
    const load = new Load((await host()).namespace(1));
    await load.progress();
    const crowd: Socket[] = [];
    try {
      for (let round = 0; round < 20; round++) {
        const more = Array.from({ length: 100 }, () => connectSocket(socket));
        for (const one of more) one.on('error', () => undefined);
        crowd.push(...more);
        await Promise.all(
          more.map(
            (one) =>
              new Promise<void>((resolve) => {
                one.once('connect', () => {
                  resolve();
                });
                one.once('close', () => {
                  resolve();
                });
              }),
          ),
        );
        for (const one of more) one.write('half a request');
      }
      const late = await failureOf(rpc('target.status'));
      expect((late as Error).message).to.contain('try again later');
      const second = new Load((await host()).namespace(2));
      await Promise.all([load.progress(), second.progress()]);
      await second.stop();
      await load.stop();
    } finally {
      for (const one of crowd) one.destroy();
    }
    // The target notices when it looks at them next.
    const deadline = Date.now() + SOON_MS;
    for (let status: unknown; status === undefined;) {
      status = await rpc('target.status').catch(() => undefined);
      expect(Date.now()).to.be.below(deadline);
    }
    expect(target.child.exitCode).to.equal(null);
  });

  it('drained under I/O, resumed, and stopped by commands', async () => {
    write([{ nqn: NQN, namespaces: [{ memory: 4 * MIB }] }]);
    const target = await start();
    const load = new Load((await host()).namespace(1));
    await load.progress();
    expect(await typed('drain')).to.contain('1 were ended');
    await within(SOON_MS, 'the end of its I/O', load.ended());
    for (const failure of load.failures) expect(failure).to.be.instanceOf(DisconnectedError);
    const busy = await failureOf(host());
    expect(busy).to.include({ code: 'CONNECT_BUSY' });
    expect((busy as Error).message).to.contain('its target is drained; try again later');
    expect((await discover({ address })).paths.map(({ kind }) => kind)).to.deep.equal(['current']);
    await typed('resume');
    const again = new Load((await host()).namespace(1));
    await again.progress();
    expect(await typed('stop')).to.equal('Stopped.\n');
    expect((await target.ended()).code).to.equal(0);
    expect(existsSync(socket)).to.be.false;
    await within(SOON_MS, 'the end of its I/O', again.ended());
  });

  it('a socket of a target that died is taken over, one of a target that lives is not', async () => {
    write([{ nqn: NQN, namespaces: [{ memory: MIB }] }]);
    const dead = await start();
    await dead.stop('SIGKILL');
    expect(existsSync(socket)).to.be.true;
    await start();
    expect(await rpc('target.status')).to.include({ state: 'serving' });
    const listen = ['--listen', loopbackAddress(), '--export', 'null:1M'];
    const { code, stderr } = await nvmeof(['target', ...listen, '--control', socket]);
    expect(code).to.equal(1);
    expect(stderr).to.contain('another target has its control socket there');
    expect(await rpc('target.status')).to.include({ state: 'serving' });
  });

  for (const abstract of [false, true]) {
    it(`tells its service manager at ${abstract ? 'an abstract name' : 'a path'} what it does, and reads its file again on SIGHUP`, async function () {
      if (!NotifySocket.available()) this.skip();
      const name = join(folder.path, 'notify');
      const manager = await NotifySocket.open(abstract ? `@${name}` : name);
      try {
        write([{ nqn: NQN, namespaces: [{ memory: 4 * MIB }] }]);
        const target = await start({ NOTIFY_SOCKET: manager.path });
        await manager.until(([first]) => first?.startsWith('READY=1\nSTATUS=serving') === true);
        const controller = await host();
        const load = new Load(controller.namespace(1));
        await load.progress();
        const reloaded = async (): Promise<string> => {
          const count = manager.states.length;
          target.child.kill('SIGHUP');
          await manager.until((states) => states.length >= count + 2);
          expect(manager.states[count]).to.match(/^RELOADING=1\nMONOTONIC_USEC=\d+\n/);
          return manager.states[count + 1] ?? '';
        };
        write([
          { nqn: NQN, namespaces: [{ memory: 8 * MIB }, { memory: MIB, nsid: 2 }] },
          { nqn: SECOND },
        ]);
        expect(await reloaded()).to.equal('READY=1\nSTATUS=serving, ports: 1, subsystems: 2');
        await eventually(
          () =>
            controller.namespaces.length === 2 && controller.namespace(1).bytes === BigInt(8 * MIB),
          SOON_MS,
          () => 'the new namespaces',
        );
        const held = await rpc('config.get');
        for (const [wrong, says] of [
          ['{ "ports": [', 'not JSON'],
          [
            JSON.stringify({ ports: [{ address }], mtu: 1024 }),
            'mtu: cannot change while the target runs',
          ],
          [
            JSON.stringify({
              ports: [{ address }],
              subsystems: [
                { nqn: NQN, namespaces: [{ memory: '1M' }, { path: '/nonexistent/disk.img' }] },
              ],
            }),
            'no such file',
          ],
        ] as const) {
          writeFileSync(config, wrong);
          expect(await reloaded())
            .to.contain('READY=1')
            .and.to.contain(`reload refused: `)
            .and.to.contain(says);
          expect(await rpc('config.get')).to.deep.equal(held);
          expect(target.stderr).to.contain('reload refused');
        }
        await load.progress();
        await load.stop();
        expect((await target.stop()).code).to.equal(0);
        await manager.until((states) => states.at(-1)?.startsWith('STOPPING=1') === true);
      } finally {
        manager.close();
      }
    });
  }

  it('config save keeps the file whole, with its mode', async () => {
    write([{ nqn: NQN }]);
    await start();
    const rounds = 20;
    const stop = new AbortController();
    const reading = (async () => {
      while (!stop.signal.aborted) {
        JSON.parse(readFileSync(config, 'utf8'));
        await new Promise((resolve) => setImmediate(resolve));
      }
    })();
    for (let round = 0; round < rounds; round++) {
      await rpc('namespace.add', { nqn: NQN, namespace: { null: MIB } });
      await rpc('config.save');
    }
    stop.abort();
    await reading;
    const saved = JSON.parse(readFileSync(config, 'utf8')) as {
      subsystems: { namespaces: object[] }[];
    };
    expect(saved.subsystems[0]?.namespaces.length).to.equal(rounds);
  });
});
