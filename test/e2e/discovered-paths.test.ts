/**
 * A subsystem whose paths follow discovery, over real sockets: ports of a target come and go while I/O goes on, and a
 * discovery service that is lost takes nothing away.
 */
import { expect } from 'chai';
import { connectPaths } from '../../initiator/index.ts';
import type { MultipathSubsystem } from '../../initiator/index.ts';
import { Target } from '../../target/index.ts';
import { eventually, keepLiveCounters } from '../support/counters.ts';
import { NQN, failureOf } from '../support/in-process.ts';
import { Load } from '../support/load.ts';
import { loopbackAddress } from '../support/processes.ts';

const MIB = 1 << 20;
const SOON_MS = 10_000;
const QUICK = { reconnectDelayMs: 100, keepAliveMs: 1000 } as const;

async function liveAt(subsystem: MultipathSubsystem, addresses: readonly string[]): Promise<void> {
  const wanted = addresses.map((address) => `${address}:4420 live`).sort();
  const there = (): string[] =>
    subsystem.paths.map(({ endpoint, state }) => `${endpoint} ${state}`).sort();
  const same = (): boolean => JSON.stringify(there()) === JSON.stringify(wanted);
  await eventually(same, SOON_MS, () => `${there().join(', ')}; wanted: ${wanted.join(', ')}`);
}

describe('paths that follow discovery', function () {
  this.timeout(60_000);
  keepLiveCounters();

  it('come and go with the ports of the target, and I/O goes on', async () => {
    const [a, b, c] = [loopbackAddress(), loopbackAddress(), loopbackAddress()];
    const target = await Target.start({
      ports: [{ address: a }, { address: b }],
      subsystems: [{ nqn: NQN, namespaces: [{ memory: 4 * MIB }] }],
    });
    let subsystem: MultipathSubsystem | undefined;
    try {
      subsystem = await connectPaths({ nqn: NQN, discover: [{ address: a }], ...QUICK });
      await liveAt(subsystem, [a, b]);
      const load = new Load(subsystem.namespace(1));
      await load.progress();
      await target.addPort({ address: c });
      await liveAt(subsystem, [a, b, c]);
      await load.progress();
      await target.removePort(b, 4420);
      await liveAt(subsystem, [a, c]);
      await load.progress();
      // The service goes with its port: its last answer stands, so the path there stays and is tried on.
      await target.removePort(a, 4420);
      const stateOf = (): string | undefined =>
        subsystem?.discovery?.services.find(({ endpoint }) => endpoint === `${a}:4420`)?.state;
      await eventually(
        () => stateOf() === 'reconnecting',
        SOON_MS,
        () => `reconnecting: ${stateOf() ?? ''}`,
      );
      expect(subsystem.paths.map(({ endpoint }) => endpoint)).to.include(`${a}:4420`);
      await load.progress();
      await target.addPort({ address: a });
      await liveAt(subsystem, [a, c]);
      await load.progress();
      await load.stop();
    } finally {
      await subsystem?.disconnect();
      await target.close();
    }
  });

  it('are beside those that were named, which stay', async () => {
    const [a, b] = [loopbackAddress(), loopbackAddress()];
    const target = await Target.start({
      ports: [{ address: a }, { address: b }],
      subsystems: [{ nqn: NQN, namespaces: [{ memory: MIB }] }],
    });
    let subsystem: MultipathSubsystem | undefined;
    try {
      const named = { paths: [{ address: b }], discover: [{ address: a }] };
      subsystem = await connectPaths({ nqn: NQN, ...named, ...QUICK });
      await liveAt(subsystem, [a, b]);
      const { discovery } = subsystem;
      const before = discovery?.services[0]?.generation ?? 0n;
      await target.removePort(b, 4420);
      const read = (): boolean => {
        const service = discovery?.services[0];
        return (service?.generation ?? 0n) > before && service?.paths.length === 1;
      };
      await eventually(read, SOON_MS, () => 'the new log');
      expect(subsystem.paths.map(({ endpoint }) => endpoint)).to.include(`${b}:4420`);
      await target.addPort({ address: b });
      await liveAt(subsystem, [a, b]);
    } finally {
      await subsystem?.disconnect();
      await target.close();
    }
  });

  it('are an error when the subsystem is not listed, and nothing stays', async () => {
    const address = loopbackAddress();
    const target = await Target.start({ ports: [{ address }], subsystems: [] });
    try {
      const error = await failureOf(connectPaths({ nqn: NQN, discover: [{ address }], ...QUICK }));
      expect(error).to.have.property('code', 'CONNECT_UNKNOWN_NQN');
    } finally {
      await target.close();
    }
  });
});
