/**
 * `nvmeof attach --nbd` with the NBD clients that people use: libnbd's programs, QEMU's, fio. Target and attach are
 * processes of their own; so are the clients.
 */
import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { connect as connectSocket } from 'node:net';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { ExitCode } from '../../tools/cli/exit-codes.ts';
import { Process, startTarget, temporaryFolder } from '../support/processes.ts';
import type { Finished, RunningTarget } from '../support/processes.ts';

const NAMESPACE_BYTES = 64 * 1024 * 1024;
/** And the Debian packages that have them. */
const TOOLS = ['nbdinfo', 'nbdcopy', 'qemu-img', 'qemu-io', 'fio'];
const PACKAGES = 'libnbd-bin qemu-utils fio';

function missingTools(): string[] {
  const missing = TOOLS.filter(
    (tool) => spawnSync(tool, ['--version'], { stdio: 'ignore' }).error !== undefined,
  );
  const engines = spawnSync('fio', ['--enghelp'], { encoding: 'utf8' });
  if (!missing.includes('fio') && !/^\s*nbd$/m.test(engines.stdout)) missing.push("fio's nbd");
  return missing;
}

const EXITS: readonly (readonly [string, NodeJS.Signals])[] = [
  ['Ctrl-C', 'SIGINT'],
  ['SIGTERM', 'SIGTERM'],
];

describe('attach: NBD clients', function () {
  this.timeout(120_000);
  const folder = temporaryFolder();
  const socket = join(folder.path, 'nbd.sock');
  const uri = `nbd+unix:///?socket=${socket}`;
  const image = join(folder.path, 'image');
  const content = randomBytes(NAMESPACE_BYTES);
  let target: RunningTarget;
  let attach: Process;

  async function startAttach(path = socket, nsid = 1, ...more: string[]): Promise<Process> {
    const args = ['attach', target.address, target.nqn, '--nsid', String(nsid), '--nbd', path];
    // A machine that is busy with all these clients may leave a Keep Alive waiting.
    const running = new Process([...args, '--cores', '0,1', '--keep-alive', '60s', ...more]);
    await running.waitFor(/Stop with/);
    return running;
  }

  /** Runs a client to its end, and expects it to succeed. */
  async function run(program: string, ...args: string[]): Promise<Finished> {
    const finished = await new Process(args, {}, program).ended();
    const { code, stdout, stderr } = finished;
    expect(code, `${program} ${args.join(' ')}\n${stdout}\n${stderr}`).to.equal(0);
    return finished;
  }

  function qemuIo(...commands: string[]): Promise<Finished> {
    return run('qemu-io', '-f', 'raw', ...commands.flatMap((one) => ['-c', one]), uri);
  }

  function fio(...args: string[]): string[] {
    return ['--name=nbd', '--ioengine=nbd', `--uri=${uri}`, `--size=${NAMESPACE_BYTES}`, ...args];
  }

  /** A load that goes on; resolves when it is well under way. */
  async function startLoad(...args: string[]): Promise<Process> {
    // One process: a child of fio would live on when fio is killed.
    const forever = [
      '--thread',
      '--time_based',
      '--runtime=100',
      '--eta=always',
      '--eta-newline=1',
    ];
    const load = new Process(fio(...args, '--iodepth=32', ...forever), {}, 'fio');
    await load.waitFor(/[rw]=[\d.]+[KMG]?iB\/s/);
    return load;
  }

  /** A client that has been greeted. */
  async function openSocket(): Promise<Socket> {
    const client = connectSocket(socket);
    await once(client, 'data');
    return client;
  }

  before(async function () {
    const missing = missingTools();
    if (missing.length > 0) {
      console.warn(`      skipped: no ${missing.join(', ')}; apt-get install ${PACKAGES}`);
      this.skip();
    }
    writeFileSync(image, content);
    const exports = ['memory:64MiB', 'memory:16MiB,bs=4096,ro'];
    target = await startTarget(exports.flatMap((one) => ['--export', one]));
    attach = await startAttach();
  });

  afterEach(function () {
    if (this.currentTest?.state !== 'failed') return;
    for (const { stdout, stderr } of [target.process, attach]) {
      console.error(stdout.slice(-2000), stderr.slice(-2000));
    }
  });

  after(async () => {
    await (attach as Process | undefined)?.stop();
    await (target as RunningTarget | undefined)?.stop();
    folder.remove();
  });

  it('are told size, block sizes and what they may do', async () => {
    const { stdout } = await run('nbdinfo', '--json', uri);
    const [shown] = (JSON.parse(stdout) as { exports: readonly unknown[] }).exports;
    expect(shown).to.include({
      'export-size': NAMESPACE_BYTES,
      description: `${target.nqn} namespace 1`,
      is_read_only: false,
      can_flush: true,
      can_fua: true,
      can_trim: true,
      can_zero: true,
      can_df: true,
      can_multi_conn: true,
      can_cache: false,
      can_fast_zero: false,
      block_size_minimum: 512,
      block_size_preferred: 4096,
      block_size_maximum: 32 * 1024 * 1024,
    });
    expect(statSync(socket).mode & 0o777).to.equal(0o600);
    expect((await run('nbdinfo', '--list', '--json', uri)).stdout).to.contain('"export-name": ""');
  });

  it('copy an image in and out, over several connections', async () => {
    const copy = join(folder.path, 'copy');
    await run('nbdcopy', '--connections=4', '--flush', image, uri);
    await run('nbdcopy', '--connections=4', uri, copy);
    expect(readFileSync(copy).equals(content)).to.equal(true);
    // As simple as it gets, and as large.
    await run('nbdcopy', '--synchronous', '--request-size=33554432', uri, copy);
    expect(readFileSync(copy).equals(content)).to.equal(true);
  });

  it('convert and compare images (QEMU)', async () => {
    const qcow = join(folder.path, 'image.qcow2');
    await run('qemu-img', 'convert', '-n', '-f', 'raw', '-O', 'raw', image, uri);
    await run('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', image, uri);
    await run('qemu-img', 'convert', '-f', 'raw', '-O', 'qcow2', uri, qcow);
    await run('qemu-img', 'compare', '-f', 'raw', '-F', 'qcow2', image, qcow);
  });

  it('trim and write zeroes', async () => {
    await qemuIo('write -P 0xa5 0 4M', 'write -z 64k 64k', 'write -z -u 256k 1M');
    await qemuIo('discard 2M 512k', 'flush');
    await qemuIo(
      'read -P 0xa5 0 64k',
      'read -P 0 64k 64k',
      'read -P 0xa5 128k 128k',
      'read -P 0 256k 1M',
      'read -P 0xa5 1280k 768k',
      'read -P 0 2M 512k',
      'read -P 0xa5 2560k 1536k',
    );
    await qemuIo('write -f -P 0x3c 512 512', 'read -P 0x3c 512 512', 'read -P 0xa5 1024 3072');
  });

  it('verify what they wrote (fio, random, queue depth 32, two jobs)', async () => {
    const jobs = ['--numjobs=2', '--size=16M', '--offset_increment=32M', '--group_reporting'];
    const load = ['--rw=randrw', '--bs=4k', '--iodepth=32', '--verify=crc32c'];
    const output = ['--output-format=json', `--aux-path=${folder.path}`];
    const { stdout } = await run('fio', ...fio(...load, ...jobs, ...output));
    const json = stdout.slice(stdout.indexOf('{'));
    const { jobs: reports } = JSON.parse(json) as {
      jobs: readonly { error: number; write: { total_ios: number } }[];
    };
    const [job] = reports;
    expect(job?.error).to.equal(0);
    expect(job?.write.total_ios).to.be.greaterThan(1000);
  });

  it('cannot write to a read-only namespace', async () => {
    const path = join(folder.path, 'ro.sock');
    const readOnly = await startAttach(path, 2);
    try {
      const at = `nbd+unix:///?socket=${path}`;
      const { stdout } = await run('nbdinfo', '--json', at);
      const [shown] = (JSON.parse(stdout) as { exports: readonly unknown[] }).exports;
      expect(shown).to.include({ is_read_only: true, block_size_minimum: 4096, can_trim: false });
      await run('qemu-io', '-r', '-f', 'raw', '-c', 'read -P 0 0 1M', at);
    } finally {
      await readOnly.stop();
    }
  });

  it('that die in the middle of writes leave the others alone', async () => {
    const victims = await Promise.all([1, 2, 3].map(() => startLoad('--rw=randwrite', '--bs=64k')));
    await Promise.all(victims.map((victim) => victim.stop('SIGKILL')));
    await run('nbdcopy', image, uri);
    await run('qemu-img', 'compare', '-f', 'raw', '-F', 'raw', image, uri);
  });

  it('that send nonsense, or nothing, leave the others alone', async () => {
    const silent = await openSocket();
    const noisy = await openSocket();
    // Hung up on with bytes unread: a reset, which is an error.
    noisy.on('error', () => undefined);
    const closed = new Promise((resolve) => noisy.once('close', resolve));
    noisy.resume();
    noisy.write(randomBytes(100_000));
    await qemuIo('read 0 4k');
    await closed;
    silent.destroy();
  });

  it('one process at a time has a socket', async () => {
    const args = ['attach', target.address, target.nqn, '--nbd', socket];
    const { code, stderr } = await new Process(args).ended();
    expect(code).to.equal(ExitCode.failed);
    expect(stderr).to.contain(`${socket}: another process listens there`);
    await run('nbdinfo', uri);
  });

  for (const [name, signal] of EXITS) {
    it(`are hung up on at ${name}, and the socket goes`, async () => {
      const client = await openSocket();
      client.resume();
      const closed = once(client, 'close');
      const { code, stderr } = await attach.stop(signal);
      expect(code, stderr).to.equal(ExitCode.ok);
      await closed;
      expect(existsSync(socket)).to.equal(false);
      attach = await startAttach();
    });
  }

  it('find the socket of a process that was killed taken over', async () => {
    await attach.stop('SIGKILL');
    expect(existsSync(socket)).to.equal(true);
    attach = await startAttach();
    await run('nbdinfo', uri);
  });

  it('get errors when the only path is given up, and attach says why it ends', async () => {
    await attach.stop();
    attach = await startAttach(socket, 1, '--ctrl-loss-tmo', '0');
    const busy = await startLoad('--rw=randread', '--bs=4k');
    const idle = await openSocket();
    idle.resume();
    const closed = once(idle, 'close');
    await target.stop('SIGKILL');
    const [client, server] = await Promise.all([busy.ended(), attach.ended(), closed]);
    expect(client.code).to.not.equal(0);
    expect(server.code, server.stderr).to.equal(ExitCode.disconnected);
    expect(server.stderr).to.match(/nvmeof: .*lost/);
    expect(existsSync(socket)).to.equal(false);
  });
});
