/** Targets in network namespaces: faults in the kernel's network. Where root and the kernel allow it. */
import { expect } from 'chai';
import { execFileSync } from 'node:child_process';
import { systemClock } from '../../native/common/clock.ts';
import { NetworkNamespace, tryNetworkNamespaces } from '../../tools/failover/network-namespace.ts';
import { runScenario } from '../../tools/failover/run.ts';
import { parseScenario } from '../../tools/failover/scenario.ts';
import { withTestBed } from '../../tools/failover/test-bed.ts';

const LOAD = {
  ...{ rate: 500, readPercent: 50, requestBytes: 4096, areaBytes: 1 << 20, depth: 16, seed: 7 },
};
const SETTINGS = { reconnectDelayMs: 200, keepAliveMs: 5000, policy: 'round-robin' } as const;
/** Beyond every process. */
const DEAD_PID = 2 ** 22 + 1;

const namespaces = (): string => execFileSync('ip', ['netns', 'list'], { encoding: 'utf8' });

describe('failover-test in network namespaces', function () {
  this.timeout(180_000);

  before(async function () {
    try {
      await (await NetworkNamespace.create()).remove();
    } catch {
      this.skip();
    }
  });

  it('loses packets in either direction, and a process, and leaves nothing behind', async () => {
    const faults = [
      ...(['in', 'out', 'both'] as const).map((direction, index) => ({
        ...({ kind: 'blackhole', direction, for: 300 } as const),
        at: 1000 + 1500 * index,
      })),
      { kind: 'restart', at: 5500, after: 500 } as const,
    ];
    const scenario = parseScenario({ name: 'namespaces', duration: 9000, faults }, 'test');
    const bed = { scenario, load: LOAD, settings: SETTINGS, targets: 2, networkNamespaces: true };
    const { result } = await withTestBed(bed, (made) =>
      runScenario({ ...made, scenario, load: LOAD, clock: systemClock }),
    );
    expect(result.faults.flatMap(({ broken }) => broken)).to.deep.equal([]);
    expect(result).to.include({ passed: true, errors: 0 });
    for (const fault of result.faults.slice(0, 3)) {
      // Half of all requests go that way: each black hole holds some of them up.
      expect(Math.max(fault.readStallMs, fault.writeStallMs), fault.name).to.be.greaterThan(50);
    }
    expect(namespaces()).to.not.contain(`nvmeof-ft-${process.pid}-`);
  });

  it('removes what a run left that was killed, and says what the kernel cannot do', async () => {
    const name = `nvmeof-ft-${DEAD_PID}-0`;
    execFileSync('ip', ['netns', 'add', name]);
    const refusal = await tryNetworkNamespaces();
    expect(namespaces()).to.not.contain(name);
    expect(refusal('blackhole')).to.equal(undefined);
    const loss = refusal('loss');
    if (loss !== undefined) expect(loss).to.contain('no netem (sch_netem)');
  });
});
