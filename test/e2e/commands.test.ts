/** The `nvmeof` command over real sockets: each sub-command against a running target, and how it fails. */
import { expect } from 'chai';
import { createHash, randomBytes } from 'node:crypto';
import { readFileSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { loopbackAddress, nvmeof, Process, startTarget } from '../support/processes.ts';
import { temporaryFolder, type RunningTarget } from '../support/processes.ts';

function sha256(data: Buffer): string {
  return createHash('sha256').update(data).digest('hex');
}

describe('nvmeof commands', function () {
  this.timeout(60_000);
  const folder = temporaryFolder();
  const image = join(folder.path, 'disk.img');
  const content = randomBytes(3 << 20);
  let target: RunningTarget;

  before(async () => {
    writeFileSync(image, content);
    target = await startTarget(['--export', image, '--export', 'memory:8MiB,bs=4096']);
  });

  after(async () => {
    const end = await target.stop();
    folder.remove();
    expect(end.code, end.stderr).to.equal(0);
  });

  it('discover lists the subsystem with the address it was reached at', async () => {
    const end = await nvmeof(['discover', target.address, '--json']);
    expect(end.code, end.stderr).to.equal(0);
    const log = JSON.parse(end.stdout) as { paths: { nqn: string; address: string }[] };
    expect(log.paths.map((path) => [path.nqn, path.address])).to.deep.include([
      target.nqn,
      target.address,
    ]);
  });

  it('info, id-ctrl and id-ns show what is exported', async () => {
    const info = await nvmeof(['info', target.address, target.nqn]);
    expect(info.code, info.stderr).to.equal(0);
    expect(info.stdout).to.include('3 MiB').and.to.include('8 MiB');
    const controller = await nvmeof(['id-ctrl', target.address, target.nqn, '--json']);
    expect((JSON.parse(controller.stdout) as { nn: number }).nn).to.be.at.least(2);
    const namespace = await nvmeof(['id-ns', target.address, target.nqn, '--nsid', '2', '--json']);
    expect(namespace.code, namespace.stderr).to.equal(0);
    expect(Number((JSON.parse(namespace.stdout) as { nsze: number | string }).nsze)).to.equal(2048);
  });

  it('read gives the whole image, byte for byte', async () => {
    const copy = join(folder.path, 'copy.img');
    const end = await nvmeof(['read', target.address, target.nqn, '-o', copy]);
    expect(end.code, end.stderr).to.equal(0);
    expect(sha256(readFileSync(copy))).to.equal(sha256(content));
  });

  it('read of a part goes to standard output', async () => {
    const args = ['read', target.address, target.nqn, '--offset', '1MiB', '--length', '12345'];
    const end = await nvmeof(args);
    expect(end.code, end.stderr).to.equal(0);
    const data = Buffer.from(end.stdout, 'latin1');
    expect(data.equals(content.subarray(1 << 20, (1 << 20) + 12345))).to.equal(true);
  });

  it('write from standard input lands where it was sent, and nothing beside it changes', async () => {
    const data = randomBytes(100_000);
    const args = ['write', target.address, target.nqn, '--offset', '513'];
    const end = await nvmeof(args, data);
    expect(end.code, end.stderr).to.equal(0);
    data.copy(content, 513);
    expect(sha256(readFileSync(image))).to.equal(sha256(content));
  });

  it('bench --json has the fields that the plotting tools of fio read', async () => {
    const common = ['bench', target.address, target.nqn, '--nsid', '2', '--runtime', '1', '--json'];
    const end = await nvmeof([...common, '--rw', 'randrw', '--bs', '4k', '--qd', '8', '--verify']);
    expect(end.code, end.stderr).to.equal(0);
    interface Side {
      iops: number;
      bw_bytes: number;
      total_ios: number;
      clat_ns: { mean: number; percentile: Record<string, number> };
    }
    const { jobs } = JSON.parse(end.stdout) as { jobs: { read: Side; write: Side }[] };
    for (const side of [jobs[0]?.read, jobs[0]?.write]) {
      expect(side?.iops).to.be.greaterThan(0);
      expect(side?.bw_bytes).to.be.greaterThan(0);
      expect(side?.clat_ns.mean).to.be.greaterThan(0);
      expect(side?.clat_ns.percentile['99.000000']).to.be.greaterThan(0);
    }
  });

  it('doctor names the target that holds the port', async () => {
    const end = await nvmeof(['doctor', '--json']);
    expect(end.stdout).to.include(`${target.process.child.pid ?? 0}`);
  });

  describe('failures say why, and their exit code means something', () => {
    it('an unknown NQN', async () => {
      const end = await nvmeof(['info', target.address, 'nqn.2026-11.io.nvmeof:nobody']);
      expect(end.code).to.equal(3);
      expect(end.stderr).to.match(/NQN/).and.to.include('nqn.2026-11.io.nvmeof:nobody');
    });

    it('nobody holds the port', async () => {
      const end = await nvmeof(['info', loopbackAddress(), target.nqn]);
      expect(end.code).to.equal(3);
      expect(end.stderr).to.match(/port 4791|unreachable/);
    });

    it('nobody listens on the NVMe port', async () => {
      const end = await nvmeof(['info', `${target.address}:4999`, target.nqn]);
      expect(end.code).to.equal(3);
      expect(end.stderr).to.include('4999');
    });

    it('a host that is not allowed', async () => {
      const other = await startTarget([
        '--export',
        'memory:1MiB',
        '--allow',
        'nqn.2014-08.org.nvmexpress:uuid:00000000-1111-2222-3333-444444444444',
      ]);
      const end = await nvmeof(['info', other.address, other.nqn]);
      await other.stop();
      expect(end.code).to.equal(3);
      expect(end.stderr).to.match(/not allowed/);
    });

    it('a second target on the same address learns who holds it', async () => {
      const second = new Process(['target', '--listen', target.address, '--export', 'memory:1MiB']);
      const end = await second.ended();
      expect(end.code).to.not.equal(0);
      expect(end.stderr + end.stdout).to.include('4791');
      expect(end.stderr + end.stdout).to.include(`${target.process.child.pid ?? 0}`);
    });

    it('the same file twice is refused', async () => {
      const second = new Process(['target', '--listen', loopbackAddress(), '--export', image]);
      const end = await second.ended();
      expect(end.code).to.not.equal(0);
      expect(end.stderr + end.stdout).to.include(image);
      expect(end.stderr + end.stdout).to.include(`${target.process.child.pid ?? 0}`);
    });

    it('files that cannot be exported', async () => {
      const odd = join(folder.path, 'odd.img');
      writeFileSync(odd, 'x'.repeat(1000));
      for (const [what, text] of [
        [join(folder.path, 'none.img'), 'no such file'],
        [folder.path, 'directory'],
        [odd, 'truncate -s'],
        ['memory:1001', 'block size'],
      ] as const) {
        const end = await nvmeof(['target', '--listen', loopbackAddress(), '--export', what]);
        expect(end.code, what).to.not.equal(0);
        expect(end.stderr + end.stdout, what).to.include(text);
        expect(end.stderr, what).to.not.match(/^\s+at /m);
      }
    });

    it('a read beyond the end', async () => {
      const end = await nvmeof(['read', target.address, target.nqn, '--offset', '1GiB']);
      expect(end.code).to.be.oneOf([1, 2]);
      expect(end.stderr).to.match(/3 MiB|beyond|end/);
    });
  });
});

/** Resolves when the target has taken such a command. */
async function untilServed({ process: target }: RunningTarget, command: string): Promise<void> {
  while (!target.stderr.includes(`"target.commands.${command}":`)) {
    target.child.kill('SIGUSR1');
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

describe('a target that goes away', function () {
  this.timeout(60_000);

  it('killed while a host writes: the host reports it, with its exit code, and does not hang', async () => {
    const target = await startTarget(['--export', 'memory:64MiB']);
    const bench = new Process([
      ...['bench', target.address, target.nqn, '--rw', 'randwrite'],
      ...['--qd', '32', '--runtime', '30'],
    ]);
    await untilServed(target, 'write');
    target.process.child.kill('SIGKILL');
    const killedAt = Date.now();
    const end = await bench.ended();
    expect(end.code, end.stderr).to.be.oneOf([1, 6]);
    expect(Date.now() - killedAt).to.be.lessThan(10_000);
    expect(end.stderr).to.match(/lost|died|disconnected|unreachable/i);
  });

  it('stopped with a signal: it drains and ends with 0, the host is told', async () => {
    const target = await startTarget(['--export', 'memory:64MiB']);
    const bench = new Process([
      ...['bench', target.address, target.nqn, '--rw', 'randread'],
      ...['--qd', '32', '--runtime', '30'],
    ]);
    await untilServed(target, 'read');
    const stopped = await target.stop('SIGINT');
    expect(stopped.code, stopped.stderr).to.equal(0);
    const end = await bench.ended();
    expect(end.code).to.be.oneOf([1, 6]);
  });

  it('its file is cut while exported: reads fail, the target lives', async () => {
    const folder = temporaryFolder();
    const path = join(folder.path, 'disk.img');
    writeFileSync(path, Buffer.alloc(1 << 20, 7));
    const target = await startTarget(['--export', path]);
    truncateSync(path, 4096);
    const cut = await nvmeof(['read', target.address, target.nqn, '--offset', '512KiB']);
    expect(cut.code).to.equal(4);
    const left = await nvmeof(['read', target.address, target.nqn, '--length', '4096']);
    expect(left.code, left.stderr).to.equal(0);
    expect(left.stdout).to.equal('\x07'.repeat(4096));
    await target.stop();
    folder.remove();
  });
});
