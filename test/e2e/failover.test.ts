/**
 * `nvmeof failover-test` with real processes: short runs, what it says when bounds are not kept, what it
 * refuses, and that targets which it stops and kills are gone afterwards.
 */
import { expect } from 'chai';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { connect } from '../../initiator/index.ts';
import { systemClock } from '../../native/common/clock.ts';
import { ManagedTarget } from '../../tools/failover/managed-target.ts';
import { runScenario } from '../../tools/failover/run.ts';
import { parseScenario } from '../../tools/failover/scenario.ts';
import { SeveralPathsHost } from '../../tools/failover/several-paths.ts';
import { eventually } from '../support/counters.ts';
import { fromSource } from '../support/failover.ts';
import { failureOf, within } from '../support/in-process.ts';
import {
  loopbackAddress,
  nvmeof,
  Process,
  startTarget,
  temporaryFolder,
} from '../support/processes.ts';

const NQN = 'nqn.2026-11.io.nvmeof:failover';

interface Report {
  readonly passed: boolean;
  readonly runs: readonly {
    readonly passed: boolean;
    readonly requests: number;
    readonly durationMs: number;
    readonly wrongBlocks: number;
    readonly blocksVerified: number;
    readonly faults: readonly Readonly<Record<string, number>>[];
  }[];
}

const childrenOf = (pid: number): string[] =>
  readFileSync(`/proc/${pid}/task/${pid}/children`, 'latin1').split(' ').filter(Boolean);

function test(scenario: object, ...more: string[]): ReturnType<typeof nvmeof> {
  const flags = ['--rate', '1000', '--size', '2MiB', '--qd', '32', '--seed', '5'];
  return nvmeof(['failover-test', '--scenario', JSON.stringify(scenario), ...flags, ...more]);
}

const startManaged = (): Promise<ManagedTarget> =>
  ManagedTarget.start({
    ...{ address: loopbackAddress(), port: 4420, nqn: NQN, seed: 1 },
    exports: ['memory:16MiB,bs=4096'],
  });

describe('nvmeof failover-test', function () {
  this.timeout(180_000);

  it('passes what one path survives, verified, and writes its report', async () => {
    const folder = temporaryFolder();
    try {
      // Those of a busy machine: what is tested is that they are measured.
      const bounds = { stallMs: 5000 };
      const scenario = {
        ...{ name: 'short', duration: '2500ms' },
        faults: [
          { kind: 'loss', at: 500, for: 500, drop: 0.01, bounds },
          { kind: 'stop', at: 1200, for: 300, bounds },
          { kind: 'resize', at: 1900, percent: 150, bounds },
        ],
      };
      const { code, stdout, stderr } = await test(scenario, '--json', '--report', folder.path);
      expect(code, stderr).to.equal(0);
      const { passed, runs } = JSON.parse(stdout) as Report;
      expect(passed).to.equal(true);
      const [run] = runs;
      expect(run).to.include({ wrongBlocks: 0, passed: true });
      // One a millisecond, also those that were due while it stood still.
      expect(run?.requests).to.be.within(2300, (run?.durationMs ?? 0) + 2);
      expect(run?.blocksVerified).to.be.greaterThan(1500);
      expect(run?.faults.map(({ errors }) => errors)).to.deep.equal([0, 0, 0]);
      // It stood still, and that was seen as soon as all requests in flight waited for it.
      expect(run?.faults[1]?.['readStallMs']).to.be.within(100, 5000);
      for (const name of ['failover.json', 'failover.md', 'failover.html']) {
        expect(existsSync(join(folder.path, name)), name).to.equal(true);
      }
      expect(readFileSync(join(folder.path, 'failover.md'), 'utf8')).to.match(/short: passed/);
    } finally {
      folder.remove();
    }
  });

  it('fails when a bound is not kept, and names it', async () => {
    const scenario = {
      ...{ name: 'strict', duration: '1500ms' },
      faults: [{ kind: 'blackhole', at: 500, for: 300, bounds: { stallMs: 50 } }],
    };
    const { code, stdout, stderr } = await test(scenario);
    expect(code, stderr).to.equal(1);
    expect(stdout).to.match(/strict: FAILED/);
    expect(stdout).to.match(/no read ended for \d+ ms, 50 ms are allowed/);
    expect(stderr).to.match(/the bounds were not kept: strict/);
  });

  it('passes the death of a target, and the change of a path, on the other path', async () => {
    const bounds = { stallMs: 5000 };
    const scenario = {
      ...{ name: 'dead', duration: '4s' },
      faults: [
        { kind: 'ana', at: 500, for: 700, target: 1, state: 'inaccessible', bounds },
        { kind: 'kill', at: '2s', bounds: { ...bounds, detectMs: 5000 } },
      ],
    };
    const { code, stdout, stderr } = await test(scenario, '--json');
    expect(code, stderr).to.equal(0);
    const [run] = (JSON.parse(stdout) as Report).runs;
    expect(run).to.include({ wrongBlocks: 0, passed: true });
    expect(run?.faults.map(({ errors }) => errors)).to.deep.equal([0, 0]);
  });

  it('overwrites targets that exist already only when told so, and what it cannot do is refused', async () => {
    const target = await startTarget(['--export', 'memory:8MiB,bs=4096']);
    const loss = { kind: 'loss', at: 400, for: 200, drop: 0.05, bounds: { stallMs: 5000 } };
    const there = ['--path', target.address, '--nqn', target.nqn];
    try {
      const asked = await test({ name: 'there', duration: '1s', faults: [loss] }, ...there);
      expect(asked.code).to.equal(2);
      expect(asked.stderr).to.match(
        /overwrites the first 2 MiB of namespace 1 of .*8 MiB.*serial \w/,
      );
      expect(asked.stderr).to.match(/--destroy-data/);
      const kill = { name: 'kill', duration: '1s', faults: [{ kind: 'kill', at: 400 }] };
      const refused = await test(kill, ...there, '--destroy-data');
      expect(refused.code).to.equal(2);
      expect(refused.stderr).to.match(/kill at .*not a process of this test/);
      const done = await test(
        { name: 'there', duration: '1s', faults: [loss] },
        ...[...there, '--destroy-data', '--json', '--repeat', '2'],
      );
      expect(done.code, done.stderr).to.equal(0);
      expect((JSON.parse(done.stdout) as Report).runs).to.have.length(2);
    } finally {
      await target.stop();
    }
  });

  it('refuses what makes no sense', async () => {
    const bounds = { stallMs: 1000 };
    const loss = { kind: 'loss', at: 500, for: 500, drop: 0.01, bounds };
    const small = { name: 'small', duration: '2s', faults: [loss] };
    const refused = await test(small, '--bs', '1000');
    expect(refused.code).to.equal(2);
    expect(refused.stderr).to.match(/not whole blocks/);
    const beyond = { ...small, faults: [{ ...loss, target: 16 }] };
    expect((await test(beyond)).stderr).to.match(/faults\[0\]\.target/);
  });

  it('a target takes faults from its parent alone', async () => {
    const { code, stderr } = await nvmeof(['target', '--export', 'memory:1MiB', '--inject-faults']);
    expect(code).to.equal(2);
    expect(stderr).to.match(/--inject-faults is for programs that start this one/);
    expect((await nvmeof(['target', '--help'])).stdout).not.to.match(/inject/);
  });

  it('what it started ends with it, however it ends', async () => {
    const loss = { kind: 'loss', at: 500, for: 500, drop: 0.01 };
    const long = JSON.stringify({ name: 'long', duration: '50s', faults: [loss] });
    for (const signal of ['SIGINT', 'SIGKILL'] as const) {
      const running = new Process(['failover-test', '--scenario', long]);
      await running.waitFor(/loss begins/);
      const children = childrenOf(running.child.pid ?? 0);
      expect(children, signal).to.have.length(2);
      const { code } = await running.stop(signal);
      expect(code, signal).to.equal(signal === 'SIGINT' ? 1 : null);
      const gone = (): boolean => children.every((pid) => !existsSync(`/proc/${pid}`));
      await eventually(gone, 10_000, () => `the targets of ${signal} are gone`);
    }
  });
});

describe('targets that are made to fail', function () {
  this.timeout(60_000);
  fromSource();

  it('are killed, started again as they were, paused, and gone at the end', async () => {
    const target = await startManaged();
    const { address } = target.options;
    const pids = [target.pid];
    try {
      await target.addFault({ drop: 0.5 });
      expect(await failureOf(target.addFault({ drop: 5 })))
        .to.have.property('message')
        .that.includes('rules[1].drop');
      await target.kill();
      expect(target.running).to.equal(false);
      expect(await failureOf(target.counters())).to.be.instanceOf(Error);
      await target.startAgain();
      pids.push(target.pid);
      expect((await target.counters())['soft.fault.in_dropped']).to.equal(0);
      await target.resize(1, 32n << 20n);
      const controller = await connect({ address, nqn: NQN });
      expect(controller.namespace(1).bytes).to.equal(32n << 20n);
      await target.pause();
      const read = controller.namespace(1).read(0, 1);
      const first = await Promise.race([
        read.then(() => 'read'),
        new Promise((resolve) => setTimeout(resolve, 200, 'nothing')),
      ]);
      expect(first).to.equal('nothing');
      target.resume();
      await within(5000, 'the read', read);
      await controller.disconnect();
      await target.pause();
    } finally {
      await target.close();
    }
    for (const pid of pids) expect(existsSync(`/proc/${pid}`), String(pid)).to.equal(false);
  });

  it('a path that is lost under load is noticed, counted, and no data is wrong', async () => {
    const target = await startManaged();
    let host: SeveralPathsHost | undefined;
    try {
      // Given up at once: without that, I/O waits for the path.
      const paths = [{ address: target.options.address }];
      host = await SeveralPathsHost.connect({ nqn: NQN, paths, ctrlLossMs: 0 }, 1);
      const scenario = parseScenario(
        {
          ...{ name: 'lost', duration: 2000 },
          faults: [{ kind: 'kill', at: 500, bounds: { detectMs: 1000 } }],
        },
        'test',
      );
      const load = { readPercent: 50, requestBytes: 4096, areaBytes: 1 << 20, depth: 16, seed: 1 };
      const { record, result, errors } = await runScenario({
        ...{ scenario, host, targets: [target], nsid: 1, clock: systemClock },
        reconnectDelayMs: 1000,
        load: { ...load, rate: 500 },
      });
      expect(result.passed).to.equal(false);
      const [fault] = result.faults;
      // ICMP says at once that nobody is there.
      expect(fault?.detectMs).to.be.lessThan(1000);
      expect(fault?.errors).to.be.greaterThan(100);
      expect(fault?.readStallMs).to.be.greaterThan(1000);
      expect(record.paths.map(({ state }) => state)).to.deep.equal(['lost']);
      expect(record.mismatches).to.equal(0);
      expect(result.broken).to.deep.equal(['not every block could be read after the run']);
      expect(errors[0]?.code).to.equal('NVME_HOST_PATH_ERROR');
    } finally {
      await host?.close();
      await target.close();
    }
  });
});
