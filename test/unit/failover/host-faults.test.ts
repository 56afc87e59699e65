/** Faults in the host's own packets, over devices that come and go. */
import { expect } from 'chai';
import type { Environment } from '../../../initiator/environment.ts';
import { systemEnvironment } from '../../../initiator/environment.ts';
import type { Faults } from '../../../initiator/index.ts';
import type { DeviceLease, RuntimeLease } from '../../../native/shared-runtime.ts';
import { remoteTargets } from '../../../tools/failover/existing-bed.ts';
import { HostFaults } from '../../../tools/failover/host-faults.ts';

interface FakeDevice {
  readonly told: Faults[];
  released: number;
}

function bench(): {
  readonly faults: HostFaults;
  readonly devices: FakeDevice[];
  readonly open: () => DeviceLease;
} {
  const devices: FakeDevice[] = [];
  const openDevice = (): DeviceLease => {
    const device: FakeDevice = { told: [], released: 0 };
    devices.push(device);
    return {
      ...({ id: devices.length, info: {}, shared: false } as unknown as DeviceLease),
      setFaults: (rules) => device.told.push(rules),
      release: () => {
        device.released++;
      },
    };
  };
  const lease = { openDevice } as unknown as RuntimeLease;
  const base: Environment = { ...systemEnvironment, acquire: () => lease };
  const faults = new HostFaults(9, base);
  const open = (): DeviceLease =>
    faults.environment.acquire({}).openDevice({ address: '192.0.2.1', provider: 'soft' } as never);
  return { faults, devices, open };
}

describe('faults in the packets of the host', () => {
  it('hold on every device, also on one that is opened later, until they end', async () => {
    const { faults, devices, open } = bench();
    open();
    const end = faults.add({ drop: 1, peer: '192.0.2.7' });
    open();
    const rules = [{ drop: 1, peer: '192.0.2.7' }];
    expect(devices.map(({ told }) => told.at(-1))).to.deep.equal([
      { seed: 9, rules },
      { seed: 9, rules },
    ]);
    await end();
    expect(devices.map(({ told }) => told.at(-1)?.rules)).to.deep.equal([[], []]);
  });

  it('a device that was closed is told nothing more', () => {
    const { faults, devices, open } = bench();
    open().release();
    faults.add({ drop: 1 });
    expect(devices[0]?.told).to.have.length(1);
    expect(devices[0]?.released).to.equal(1);
  });

  it('directions are those of the target, and peers of the path', async () => {
    const { faults, devices, open } = bench();
    open();
    const paths = [{ address: '192.0.2.7', port: 4420 }];
    const [target] = remoteTargets({ paths, nqn: 'nqn.x', nsid: 1, controls: [] }, faults);
    for (const [theirs, ours] of [
      ['in', 'out'],
      ['out', 'in'],
      ['both', 'both'],
    ] as const) {
      const end = await target?.packetFault({ direction: theirs, drop: 1 });
      expect(devices[0]?.told.at(-1)?.rules).to.deep.equal([
        { direction: ours, drop: 1, peer: '192.0.2.7' },
      ]);
      await end?.();
    }
  });
});
