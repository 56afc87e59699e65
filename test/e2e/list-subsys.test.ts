/** A running `nvmeof attach` is asked what it is connected to, while one of its two targets dies, and is given other paths. */
import { expect } from 'chai';
import { statSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { Process, loopbackAddress, nvmeof, temporaryFolder } from '../support/processes.ts';

const NQN = 'nqn.2024-01.com.example:view';
const UUID = '7d9c1f4e-3a52-4c7e-9d1b-000000000123';
const SOON_MS = 20_000;

describe('list-subsys and path', function () {
  this.timeout(120_000);
  const processes: Process[] = [];
  let folder = temporaryFolder();
  beforeEach(() => {
    folder = temporaryFolder();
  });
  afterEach(async () => {
    for (const one of processes.splice(0).reverse()) await one.stop();
    folder.remove();
  });

  async function start(args: readonly string[], ready: RegExp, env = {}): Promise<Process> {
    const running = new Process(args, env);
    processes.push(running);
    await running.waitFor(ready);
    return running;
  }

  async function target(disk: string, first: number): Promise<readonly [string, Process]> {
    const address = loopbackAddress();
    const config = join(folder.path, `${first}.json`);
    const namespaces = [{ path: disk, shared: true, uuid: UUID }];
    const cntlids = { first, last: first + 99 };
    const subsystems = [{ nqn: NQN, cntlids, namespaces }];
    writeFileSync(config, JSON.stringify({ ports: [{ address }], subsystems }));
    const args = ['target', '--config', config, '--no-control'];
    return [address, await start(args, /Stop with Ctrl-C/)];
  }

  it('show a path that is lost beside one that is live, and change paths', async () => {
    const disk = join(folder.path, 'disk.img');
    writeFileSync(disk, '');
    truncateSync(disk, 4 << 20);
    const [a, first] = await target(disk, 1);
    const [b] = await target(disk, 100);
    const socket = join(folder.path, 'attach.sock');
    const nbd = join(folder.path, 'nbd.sock');
    const quick = ['--reconnect-delay', '0.2', '--keep-alive', '2s'];
    const ways = ['--path', b, '--nbd', nbd, '--control', socket];
    await start(['attach', a, NQN, ...ways, ...quick], /Stop with Ctrl-C/);
    expect(statSync(socket).mode & 0o777).to.equal(0o600);
    let tree = '';
    const list = async (): Promise<string> => {
      const { code, stdout, stderr } = await nvmeof(['list-subsys', socket]);
      expect(stderr).to.equal('');
      expect(code).to.equal(0);
      return stdout;
    };
    const shows = async (pattern: RegExp): Promise<void> => {
      const deadline = performance.now() + SOON_MS;
      do tree = await list();
      while (!pattern.test(tree) && performance.now() < deadline);
      expect(tree).to.match(pattern);
    };
    const line = (address: string, rest: string): RegExp =>
      new RegExp(`^ \\+- traddr=${address.replaceAll('.', '\\.')},trsvcid=4420 ${rest}`, 'm');
    const path = async (...args: string[]): Promise<string> => {
      const { stdout, stderr } = await nvmeof(['path', ...args, '--socket', socket]);
      return stdout + stderr;
    };

    await shows(line(b, 'live optimized$'));
    await shows(line(a, 'live optimized$'));
    expect(tree).to.match(new RegExp(`^${NQN} - process \\d+, round-robin$`, 'm'));
    expect(tree).to.contain(`UUID ${UUID}`).and.to.contain(nbd);

    await first.stop('SIGKILL');
    await shows(line(a, 'reconnecting \\(.+\\)$'));
    expect(tree).to.match(line(b, 'live optimized$'));

    expect(await path('remove', `${a}:4420`)).to.equal(`Removed ${a}:4420.\n`);
    expect(await path('remove', `${b}:4420`)).to.contain('is the last path');
    expect(await path('reset', `${a}:4420`)).to.contain(`there is no path ${a}:4420`);
    const [c] = await target(disk, 200);
    expect(await path('add', c)).to.equal(`Path ${c}:4420 is live.\n`);
    expect(await path('add', c)).to.contain(`there is a path ${c}:4420 already`);
    expect(await path('remove', `${b}:4420`)).to.equal(`Removed ${b}:4420.\n`);
    expect(await path('policy', 'queue-depth')).to.equal('Policy is queue-depth.\n');
    await shows(line(c, 'live optimized$'));
    expect(tree).to.contain('queue-depth').and.not.to.contain(b);
  });

  it('find the processes of this user by themselves', async () => {
    const disk = join(folder.path, 'disk.img');
    writeFileSync(disk, '');
    truncateSync(disk, 4 << 20);
    const [a] = await target(disk, 1);
    const args = ['attach', a, NQN, '--nbd', join(folder.path, 'nbd.sock')];
    const attach = await start(args, /Stop with Ctrl-C/, { XDG_RUNTIME_DIR: folder.path });
    const list = new Process(['list-subsys', '--json'], { XDG_RUNTIME_DIR: folder.path });
    const { stdout } = await list.ended();
    const all = JSON.parse(stdout) as { pid: number; nqn: string; paths: object[] }[];
    const ours = all.find(({ pid }) => pid === attach.child.pid);
    expect(ours).to.include({ nqn: NQN, policy: 'round-robin', writesHeld: 0 });
    expect(ours?.paths[0]).to.include({ endpoint: `${a}:4420`, state: 'live', attempts: 0 });
  });
});
