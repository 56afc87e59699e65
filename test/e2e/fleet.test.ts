/**
 * A target that ends and starts again while many hosts are connected: all come back by themselves, spread over time, and go on with
 * their I/O. NVMEOF_FLEET_HOSTS sets how many (60), NVMEOF_FLEET_DELAY_MS their reconnect delay (1000); more than 60 print what was
 * measured.
 */
import { expect } from 'chai';
import { Fleet, mostWithin } from '../support/fleet.ts';
import type { FleetReport } from '../support/fleet.ts';
import { loopbackAddress, startTarget } from '../support/processes.ts';
import type { RunningTarget } from '../support/processes.ts';

const FEW = 60;
const HOSTS = Number(process.env['NVMEOF_FLEET_HOSTS'] ?? FEW);
const DELAY_MS = Number(process.env['NVMEOF_FLEET_DELAY_MS'] ?? '1000');
const NQN = 'nqn.2026-11.io.nvmeof:fleet';
/** Of the delay, see initiator/multipath/timers.ts. */
const LEAST_PART = 0.5;
/** An admin queue and an I/O queue. */
const QUEUES = 2;
const WINDOW_MS = 100;

const address = loopbackAddress();
const start = (): Promise<RunningTarget> => startTarget(['--export', 'memory:1MiB'], NQN, address);

function latest(times: readonly number[]): number {
  return times.reduce((a, b) => Math.max(a, b), 0);
}

/** Once the target listened. */
function summary({ requestsAt, liveAt, readAt }: FleetReport, listening: number): string {
  const requests = requestsAt.filter((time) => time >= listening);
  const span = latest(requests) - Math.min(...requests);
  const most = mostWithin(requests, WINDOW_MS);
  const mean = (requests.length / span) * WINDOW_MS;
  const after = (times: readonly number[]): string => `${Math.round(latest(times) - listening)} ms`;
  return (
    `${HOSTS} hosts: all live after ${after(liveAt)}, all read after ${after(readAt)}; ${requests.length} CM REQs, ` +
    `in ${WINDOW_MS} ms ${most} at most, ${mean.toFixed(1)} on average`
  );
}

describe(`${HOSTS} hosts of one target`, function () {
  this.timeout(60_000 + HOSTS * 500 + 4 * DELAY_MS);
  let target: RunningTarget;
  let fleet: Fleet;

  before(async () => {
    target = await start();
    fleet = new Fleet({ address, nqn: NQN, hosts: HOSTS, reconnectDelayMs: DELAY_MS, sources: 1 });
    await fleet.next('live');
  });

  after(async () => {
    expect(await fleet.stop()).to.equal(0);
    expect((await target.stop()).code).to.equal(0);
  });

  for (const signal of ['SIGKILL', 'SIGTERM'] as const) {
    it(`come back when it was ended by ${signal} and started again`, async () => {
      const lost = fleet.next('lost');
      await target.stop(signal);
      await lost;
      target = await start();
      const listening = Date.now();
      const report = await fleet.next('live');
      expect(report.liveAt, 'each host once').to.have.length(HOSTS);
      expect(report.readAt).to.have.length(HOSTS);
      // Nobody tries again before its delay is over.
      const first = Math.min(...report.requestsAt);
      const attempts = 1 + (latest(report.requestsAt) - first) / (LEAST_PART * DELAY_MS);
      expect(report.requestsAt.length).to.be.at.most(QUEUES * HOSTS * Math.ceil(attempts));
      if (HOSTS > FEW) console.log(`      ${signal}: ${summary(report, listening)}`);
    });
  }
});
