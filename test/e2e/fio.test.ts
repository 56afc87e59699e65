/**
 * fio over an attached namespace: its engine on `nvmeof attach --socket`, and `nvmeof fio`. Target, attach and fio are
 * processes of their own. Needs fio and its sources, from which the engine is built.
 */
import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ExitCode } from '../../tools/cli/exit-codes.ts';
import {
  loopbackAddress,
  nvmeof,
  Process,
  startTarget,
  temporaryFolder,
} from '../support/processes.ts';
import type { Finished, RunningTarget } from '../support/processes.ts';

const BUILD = fileURLToPath(new URL('../../tools/fio/build-engine.sh', import.meta.url));
/** fetching, configuring and compiling, on a busy machine */
const BUILD_MS = 300_000;

const SHARED = 'nqn.2026-11.io.nvmeof:shared';
/** Written and read back at the same time, over and over, for longer than three targets take to die and come back. */
const VERIFIED = [
  ...['--verify=crc32c', '--verify_backlog=64', '--verify_fatal=1'],
  ...['--time_based', '--runtime=20'],
];

describe("attach: fio's engine", function () {
  this.timeout(120_000);
  const folder = temporaryFolder();
  const socket = join(folder.path, 'disk.sock');
  let engine = '';
  let target: RunningTarget;
  let attach: Process;

  async function startAttach(
    from: RunningTarget,
    path: string,
    nsid = 1,
    ...more: string[]
  ): Promise<Process> {
    const args = ['attach', from.address, from.nqn, '--nsid', String(nsid), '--socket', path];
    const running = new Process([...args, ...more]);
    await running.waitFor(/Stop with/);
    return running;
  }

  function fio(path: string, ...args: string[]): Process {
    // fio would leave the state of a verification in the current folder.
    const place = [`--ioengine=external:${engine}`, `--filename=${path}`, '--verify_state_save=0'];
    return new Process(['--name=job', ...place, ...args], {}, 'fio');
  }

  /** Runs fio to its end, and expects it to succeed. */
  async function run(...args: string[]): Promise<Finished> {
    const finished = await fio(socket, ...args).ended();
    const { code, stdout, stderr } = finished;
    expect(code, `${args.join(' ')}\n${stdout}\n${stderr}`).to.equal(0);
    return finished;
  }

  /** A load that goes on; resolves when it is well under way. */
  async function startLoad(path: string, ...args: string[]): Promise<Process> {
    const forever = ['--time_based', '--runtime=100', '--eta=always', '--eta-newline=1'];
    const load = fio(path, ...args, '--bs=4k', '--iodepth=32', ...forever);
    await load.waitFor(/[rw]=[\d.]+[KMG]?iB\/s/);
    return load;
  }

  before(async function () {
    this.timeout(BUILD_MS);
    const built = spawnSync('bash', [BUILD], { encoding: 'utf8' });
    if (built.status !== 0) {
      console.warn(`      skipped: ${built.stderr.trim()}`);
      this.skip();
    }
    engine = built.stdout.trim();
    const exports = ['memory:64MiB', 'memory:16MiB,bs=4096,ro'];
    target = await startTarget(exports.flatMap((one) => ['--export', one]));
    attach = await startAttach(target, socket);
  });

  after(async () => {
    await (attach as Process | undefined)?.stop();
    await (target as RunningTarget | undefined)?.stop();
    folder.remove();
  });

  const mixed = ['--rw=randrw', '--bs=4k', '--iodepth=16', '--size=12m', '--verify=crc32c'];
  const apart = ['--offset_increment=16m', '--verify_fatal=1'];

  it('verifies what several processes write', () => run(...mixed, ...apart, '--numjobs=3'));

  it('verifies what several threads write', () =>
    run(...mixed, ...apart, '--numjobs=3', '--thread'));

  for (const size of ['512', '4k', '64k', '1m']) {
    it(`moves blocks of ${size}`, () =>
      run(
        ...['--rw=randwrite', `--bs=${size}`, '--iodepth=8', '--verify=md5', '--fsync=16'],
        ...['--number_ios=256', '--size=32m'],
      ));
  }

  it('moves blocks of mixed sizes, through to stable media', () =>
    run('--rw=randwrite', '--bsrange=512-256k', '--iodepth=4', '--sync=1', '--size=16m'));

  it('trims, and reads zeroes there', async () => {
    await run('--rw=write', '--bs=64k', '--size=8m', '--buffer_pattern=0xa5');
    await run('--rw=trim', '--bs=64k', '--iodepth=4', '--size=4m');
    const pattern = ['--rw=read', '--bs=64k', '--verify=pattern'];
    await run(...pattern, '--size=4m', '--verify_pattern=0x00');
    await run(...pattern, '--offset=4m', '--size=4m', '--verify_pattern=0xa5');
  });

  it('says what the namespace cannot do', async () => {
    const path = join(folder.path, 'read-only.sock');
    const other = await startAttach(target, path, 2);
    for (const [args, words] of [
      [['--rw=randwrite', '--bs=4k'], 'read-only'],
      [['--rw=randread', '--bs=512'], 'blocks of 4096 bytes'],
    ] as const) {
      const { code, stderr } = await fio(path, ...args).ended();
      expect(code).to.equal(1);
      expect(stderr).to.include(words);
    }
    await other.stop();
  });

  it('names the socket that nobody serves', async () => {
    const { code, stderr } = await fio(join(folder.path, 'none'), '--rw=read').ended();
    expect(code).to.equal(1);
    expect(stderr).to.match(/none: No such file.*nvmeof attach/);
  });

  it('may be killed in the middle: attach goes on', async () => {
    for (let round = 0; round < 3; round++) {
      const load = await startLoad(socket, '--rw=randrw', '--numjobs=2', '--thread');
      await load.stop('SIGKILL');
    }
    await run(...mixed);
    expect(attach.child.exitCode).to.equal(null);
  });

  it('reports I/O errors when the only path is given up, and attach ends with the reason', async () => {
    const dying = await startTarget(['--export', 'memory:16MiB'], 'nqn.2026-11.io.nvmeof:dying');
    const path = join(folder.path, 'dying.sock');
    const other = await startAttach(dying, path, 1, '--ctrl-loss-tmo', '0');
    const load = await startLoad(path, '--rw=randread');
    await dying.stop('SIGKILL');
    const ended = await load.ended();
    expect(ended.code).to.equal(1);
    expect(ended.stdout + ended.stderr).to.match(/error=(Input\/output error|Transport endpoint)/);
    const { code, stderr } = await other.ended();
    expect(code, stderr).to.equal(ExitCode.disconnected);
  });

  it('verifies its data while a target is killed, with I/O on the other path and on none', async () => {
    const disk = join(folder.path, 'disk');
    writeFileSync(disk, '');
    truncateSync(disk, 32 << 20);
    const addresses = [loopbackAddress(), loopbackAddress()] as const;
    const start = async (index: 0 | 1): Promise<Process> => {
      const config = join(folder.path, `${index}.json`);
      const subsystem = {
        ...{ nqn: SHARED, cntlids: { first: 1 + 100 * index, last: 100 + 100 * index } },
        namespaces: [{ path: disk, shared: true, uuid: '0f1e2d3c-4b5a-4678-8a9b-acbdcedfe0f1' }],
      };
      const ports = [{ address: addresses[index] }];
      writeFileSync(config, JSON.stringify({ ports, subsystems: [subsystem] }));
      const running = new Process(['target', '--no-control', '--config', config]);
      await running.waitFor(/nvme connect -t rdma/);
      return running;
    };
    const targets: [Process, Process] = [await start(0), await start(1)];
    const path = join(folder.path, 'paths.sock');
    const args = ['attach', addresses[0], SHARED, '--path', addresses[1], '--socket', path];
    const over = new Process([...args, '--reconnect-delay', '0.2']);
    try {
      await over.waitFor(/Stop with/);
      const load = fio(path, '--rw=randrw', '--bs=4k', '--iodepth=16', '--size=8M', ...VERIFIED);
      for (const index of [0, 1, 0] as const) {
        await targets[index].stop('SIGKILL');
        await over.waitFor(new RegExp(`path ${addresses[index]}:4420: live -> reconnecting`));
        over.stderr = '';
        targets[index] = await start(index);
        await over.waitFor(new RegExp(`path ${addresses[index]}:4420: reconnecting -> live`));
        over.stderr = '';
      }
      const { code, stdout, stderr } = await load.ended();
      expect(code, stdout + stderr).to.equal(0);
      expect((await over.stop()).code).to.equal(ExitCode.ok);
    } finally {
      await over.stop();
      await Promise.all(targets.map((target) => target.stop()));
    }
  });

  describe('nvmeof fio', () => {
    it('runs a job on a running attach', async () => {
      const { code, stdout, stderr } = await nvmeof([
        ...['fio', '--socket', socket, 'verify', '--', '--size=8m', '--numjobs=2'],
        '--offset_increment=8m',
      ]);
      expect(code, stderr).to.equal(0);
      expect(stdout).to.match(/write: IOPS=/);
    });

    it('connects for the length of a run', async () => {
      const { address, nqn } = target;
      const { code, stdout, stderr } = await nvmeof([
        ...['fio', address, nqn, 'randread-4k-qd32', '--', '--runtime=1'],
      ]);
      expect(code, stderr).to.equal(0);
      expect(stdout).to.match(/read: IOPS=/);
    });

    it("takes a job file, and passes fio's exit code on", async () => {
      const job = join(folder.path, 'mine.fio');
      writeFileSync(job, '[mine]\nrw=write\nbs=1000\nsize=1m\n');
      const { code, stderr } = await nvmeof(['fio', '--socket', socket, job]);
      expect(code).to.equal(1);
      expect(stderr).to.include('bs=1000 is no multiple');
    });
  });
});
