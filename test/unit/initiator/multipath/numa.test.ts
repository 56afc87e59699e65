/** Distances between reactors and devices, from made-up sysfs trees. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { expect } from 'chai';
import { numaDistance } from '../../../../initiator/multipath/numa.ts';
import { A, B, withFabric } from './fabric.ts';

type Files = Readonly<Record<string, string | undefined>>;

/** Core 0 in node 0, core 1 in node 1; eth0 and eth1 likewise. */
const TWO_NODES: Files = {
  'devices/system/cpu/cpu0/node0/x': '',
  'devices/system/cpu/cpu1/node1/x': '',
  'devices/system/node/node0/distance': '10 21\n',
  'devices/system/node/node1/distance': '21 10\n',
  'class/net/eth0/device/numa_node': '0\n',
  'class/net/eth1/device/numa_node': '1\n',
  'class/infiniband/mlx5_0/device/numa_node': '1\n',
};
const INTERFACES = {
  eth0: [{ address: '192.0.2.1' }, { address: 'fe80::1' }],
  eth1: [{ address: '192.0.2.2' }, { address: 'fe80::1' }],
};

describe('numa distance', () => {
  let root: string;
  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'nvmeof-numa-'));
  });
  afterEach(() => {
    rmSync(root, { recursive: true });
  });

  function distance(core: number, address: string, changed: Files = {}, rdmaDevice = ''): number {
    for (const [name, text] of Object.entries({ ...TWO_NODES, ...changed })) {
      if (text === undefined) continue;
      mkdirSync(dirname(join(root, name)), { recursive: true });
      writeFileSync(join(root, name), text);
    }
    return numaDistance(root, () => INTERFACES)(core, { address, rdmaDevice });
  }

  for (const [core, address, expected] of [
    [0, '192.0.2.1', 10],
    [0, '192.0.2.2', 21],
    [1, '192.0.2.1', 21],
    [1, '192.0.2.2', 10],
    [0, 'fe80::1%eth1', 21],
    [-1, '192.0.2.2', 10],
    [7, '192.0.2.2', 10],
    [0, '198.51.100.1', 10],
  ] as const) {
    it(`core ${core} to ${address} is ${expected}`, () => {
      expect(distance(core, address)).to.equal(expected);
    });
  }

  it('takes the RDMA device where there is one', () => {
    expect(distance(0, '192.0.2.1', {}, 'mlx5_0')).to.equal(21);
  });

  const NODE = 'class/net/eth1/device/numa_node';
  const ROW = 'devices/system/node/node0/distance';
  for (const [what, changed] of [
    ['a device without a node', { [NODE]: '-1\n' }],
    ['a device that does not tell', { [NODE]: undefined }],
    ['a node that is no number', { [NODE]: 'one\n' }],
    ['a node that is not there', { [NODE]: '9\n' }],
    ['no row', { [ROW]: undefined }],
    ['a row that is too short', { [ROW]: '10\n' }],
    ['a row of garbage', { [ROW]: 'x y\n' }],
  ] as const) {
    it(`is local with ${what}`, () => {
      expect(distance(0, '192.0.2.2', changed)).to.equal(10);
    });
  }

  it('counts columns by the nodes that are online', () => {
    const changed = { 'devices/system/node/node3/distance': '31 31 10\n', [NODE]: '3\n' };
    expect(distance(0, '192.0.2.2', { ...changed, [ROW]: '10 21 31\n' })).to.equal(31);
  });

  it('fits into a byte', () => {
    expect(distance(0, '192.0.2.2', { [ROW]: '10 999\n' })).to.equal(255);
  });
});

describe('a path over several reactors', () => {
  it('has on each the distance from its core to the local device', async () => {
    await withFabric(async (fabric) => {
      fabric.numaDistance = (core, { address }) => core * 10 + Number(address.split('.').at(-1));
      const subsystem = await fabric.connect({
        cores: [3, -1],
        paths: [{ address: A }, { address: B, sourceAddress: '192.0.2.2' }],
      });
      const told = fabric.door
        .callsOf('setPath')
        .map(({ args }) => args as [number, number, { distance: number }])
        .map(([, path, { distance }]) => `${path}: ${distance}`);
      expect([...new Set(told)].sort()).to.deep.equal(['0: -9', '0: 31', '1: -8', '1: 32']);
      await subsystem.disconnect();
    });
  });
});
