/** A target with --metrics under load: what `nvmeof stats` shows, what Prometheus scrapes, and what there is without it. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import type { TargetStatistics } from '../../target/index.ts';
import { loopbackAddress, nvmeof, Process } from '../support/processes.ts';

const NQN = 'nqn.2026-11.io.nvmeof:statistics';
const METRICS = `127.0.0.1:${20_000 + (process.pid % 9000)}`;

interface Shown {
  readonly queues: readonly {
    readonly hostNqn: string;
    readonly reads: number;
    readonly writes: number;
    readonly bytesRead: number;
    readonly p50?: number;
    readonly p99?: number;
  }[];
  readonly reactors: readonly { readonly busy: number; readonly ioQueues: number }[];
  readonly packetsIn: number;
}

describe('nvmeof stats', function () {
  this.timeout(60_000);

  it('shows what hosts do now, from the port that --metrics opened', async () => {
    const address = loopbackAddress();
    const target = new Process([
      ...['target', '--export', 'memory:8MiB', '--nqn', NQN, '--listen', address],
      ...['--metrics', METRICS],
    ]);
    try {
      await target.waitFor(/nvme connect -t rdma/);
      const load = new Process([
        ...['bench', address, NQN, '--qd', '8', '--rw', 'randrw', '--runtime', '50'],
        ...['--host-nqn', 'nqn.2026-11.io.nvmeof:host-of-stats'],
      ]);
      await target.waitFor(/host-of-stats/);
      const seen = await nvmeof(['stats', METRICS, '--count', '3', '--interval', '0.5', '--json']);
      const table = await nvmeof(['stats', METRICS, '--count', '1', '--interval', '0.5']);
      const each = await nvmeof([
        'stats',
        METRICS,
        '--count',
        '1',
        '--interval',
        '0.5',
        '--queues',
      ]);
      const scraped = await (await fetch(`http://${METRICS}/metrics`)).text();
      await load.stop('SIGKILL');

      expect(seen.code, seen.stderr).to.equal(0);
      const busiest = seen.stdout
        .split(/\n(?=\{)/)
        .map((text) => JSON.parse(text) as Shown)
        .findLast(({ queues }) => queues.length > 0);
      const [queue] = busiest?.queues ?? [];
      expect(queue?.hostNqn).to.equal('nqn.2026-11.io.nvmeof:host-of-stats');
      expect(queue?.reads).to.be.greaterThan(100);
      expect(queue?.writes).to.be.greaterThan(100);
      expect(queue?.bytesRead).to.be.closeTo((queue?.reads ?? 0) * 4096, 1);
      expect(queue?.p99).to.be.at.least(queue?.p50 ?? NaN);
      expect(busiest?.reactors[0]).to.include({ ioQueues: 1 });
      expect(busiest?.packetsIn).to.be.greaterThan(100);

      expect(table.code, table.stderr).to.equal(0);
      expect(table.stdout)
        .to.include('host-of-stats')
        .and.match(/packets\/s: [\d,]+ in/);
      expect(each.stdout).to.match(/controller.*queue.*reactor.*p99/);
      const commands =
        /nvmeof_commands_total\{.*host="[^"]*host-of-stats".*operation="read"\} (\d+)/;
      expect(Number(commands.exec(scraped)?.[1])).to.be.greaterThan(100);
      expect(scraped).to.match(/nvmeof_soft_rx_packets_total \d+/);
    } finally {
      await target.stop();
    }
    const { code, stderr } = await target.ended();
    expect(code, stderr).to.equal(0);
  });

  it('shows where queues run, and what explains their speed', async () => {
    const address = loopbackAddress();
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-statistics-'));
    const file = join(folder, 'disk.img');
    writeFileSync(file, new Uint8Array(1 << 20));
    const target = new Process([
      ...['target', '--export', file, '--nqn', NQN, '--cores', '0,1', '--metrics', METRICS],
      ...['--listen', `${address}@1`, '--listen', `${address}:4421`],
    ]);
    try {
      await target.waitFor(/nvme connect -t rdma/);
      const run = async (...more: string[]): Promise<void> => {
        const { code, stderr } = await nvmeof([
          ...['bench', address, NQN, '--qd', '8', '--rw', 'randread', '--number', '400', ...more],
        ]);
        expect(code, stderr).to.equal(0);
      };
      await run();
      const load = new Process([
        ...['bench', address, NQN, '--qd', '8', '-i', '2', '--runtime', '50'],
        ...['--host-nqn', 'nqn.2026-11.io.nvmeof:host-of-placement'],
      ]);
      await target.waitFor(/host-of-placement/);
      const shown = await nvmeof(['stats', METRICS, '--count', '1', '--queues', '--reactors']);
      const statistics = (await (
        await fetch(`http://${METRICS}/statistics`)
      ).json()) as TargetStatistics;
      await load.stop('SIGKILL');

      expect(shown.code, shown.stderr).to.equal(0);
      expect(shown.stdout).to.include('on the wrong core').and.include('io_uring calls');
      expect(statistics.reactors.map(({ core, ports }) => [core, ports])).to.deep.equal([
        [0, [`${address}:4421`]],
        [1, [`${address}:4420`, `${address}:4421`]],
      ]);
      expect(statistics.reactors.map(({ ioQueues }) => ioQueues)).to.deep.equal([0, 2]);
      const [queue] = statistics.queues;
      expect(queue?.reactor).to.equal(1);
      const { transport } = queue ?? {};
      expect(transport?.packetsIn).to.be.at.least(queue?.reads ?? NaN);
      expect(transport?.packetsOut).to.be.at.least(2 * (queue?.reads ?? NaN));
      const { counters } = statistics;
      const of = (name: string): number => counters[`reactor.1.${name}`] ?? NaN;
      expect(of('soft.rx.packets')).to.be.greaterThan(400);
      expect(of('target.buffer_bytes')).to.be.greaterThan(1 << 20);
      expect(of('target.bufferWaits')).to.be.at.least(0);
      expect(of('live.targetBuffers')).to.be.at.least(0);
      if (of('ioUringCalls') > 0) {
        expect(of('ioUringSubmissions')).to.be.at.least(400).and.at.least(of('ioUringCalls'));
      } else expect(counters['reactor.0.ioUringCalls']).to.equal(0);
    } finally {
      await target.stop();
      rmSync(folder, { recursive: true });
    }
  });

  it('says how to start a target when nothing is there', async () => {
    const { code, stderr } = await nvmeof(['stats', METRICS, '--count', '1']);
    expect(code).to.equal(1);
    expect(stderr).to.include(`no statistics from ${METRICS}: `).and.include('--metrics');
  });

  it('ends a target that cannot have the port', async () => {
    const address = loopbackAddress();
    const { code, stderr } = await nvmeof([
      ...['target', '--export', 'memory:1MiB', '--listen', address, '--metrics', '192.0.2.1:1'],
    ]);
    expect(code).to.equal(1);
    expect(stderr).to.include('cannot serve metrics at 192.0.2.1:1');
  });
});
