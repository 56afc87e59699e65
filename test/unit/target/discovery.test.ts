import { expect } from 'chai';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { DiscoverySubtype } from '../../../native/wire/logs.ts';
import { readDiscovery } from './discovery-support.ts';
import { HOST_NQN, NQN, Rig, settle } from './support.ts';
import type { HostQueue } from './support.ts';

describe('discovery', () => {
  let rig: Rig;
  afterEach(() => rig.stop());
  const start = async (
    addresses: readonly string[],
    request: { local?: string } = {},
  ): Promise<HostQueue> => {
    rig = await Rig.start({
      ports: addresses.map((address) => ({ address })),
      subsystems: [{ nqn: NQN, namespaces: [{ memory: '1M' }] }],
    });
    return rig.host({}, { subnqn: DISCOVERY_NQN }, request);
  };

  it('lists every subsystem on every port, and itself', async () => {
    const admin = await start(['127.0.0.1', '::1']);
    const { entries, nvm } = await readDiscovery(admin);
    expect(
      nvm.map(({ subnqn, traddr, adrfam, portid }) => [subnqn, traddr, adrfam, portid]),
    ).to.deep.equal([
      [NQN, '127.0.0.1', 1, 1],
      [NQN, '::1', 2, 2],
    ]);
    expect(nvm[0]).to.include({
      trtype: 1,
      trsvcid: '4420',
      cntlid: 0xffff,
      asqsz: 32,
      treqDisableSqFlowControl: true,
      tsasRdmaQptype: 1,
      tsasRdmaPrtype: 4,
      tsasRdmaCms: 1,
    });
    const own = entries.filter(({ subtype }) => subtype === DiscoverySubtype.currentDiscovery);
    expect(own.map(({ subnqn }) => subnqn)).to.deep.equal([DISCOVERY_NQN, DISCOVERY_NQN]);
  });

  for (const [address, local, listed] of [
    ['0.0.0.0', '192.0.2.7', '192.0.2.7'],
    ['::', '2001:db8::7', '2001:db8::7'],
    ['::', '::ffff:192.0.2.7', '192.0.2.7'],
    ['FE80::1%lo', 'fe80::1%lo', 'fe80::1'],
    ['[2001:DB8:0:0:0:0:0:1]', '2001:db8::1', '2001:db8::1'],
    ['::ffff:127.0.0.1', '127.0.0.1', '127.0.0.1'],
    [
      '2001:0db8:1111:2222:3333:4444:5555:6666',
      '2001:db8:1111:2222:3333:4444:5555:6666',
      '2001:db8:1111:2222:3333:4444:5555:6666',
    ],
  ] as const) {
    it(`lists a port on ${address} reached at ${local} as ${listed}`, async () => {
      const admin = await start([address], { local });
      const { nvm } = await readDiscovery(admin);
      expect(nvm.map(({ traddr, adrfam }) => [traddr, adrfam])).to.deep.equal([
        [listed, listed.includes(':') ? 2 : 1],
      ]);
    });
  }

  it('hides what the host may not connect to', async () => {
    const admin = await start(['127.0.0.1']);
    const secret = 'nqn.2024-01.com.example:secret';
    await rig.target.addSubsystem({ nqn: secret, hosts: ['nqn.2024-01.com.example:other'] });
    expect((await readDiscovery(admin)).nvm.map(({ subnqn }) => subnqn)).to.deep.equal([NQN]);
    await rig.target.setHosts(secret, { allowAnyHost: false, hosts: [HOST_NQN] });
    expect((await readDiscovery(admin)).nvm.map(({ subnqn }) => subnqn)).to.deep.equal([
      NQN,
      secret,
    ]);
  });

  it('counts generations up with every change', async () => {
    const admin = await start(['127.0.0.1']);
    const seen = [(await readDiscovery(admin)).genctr];
    const next = async (change: Promise<unknown>): Promise<void> => {
      await change;
      seen.push((await readDiscovery(admin)).genctr);
    };
    await next(rig.target.addSubsystem({ nqn: 'nqn.2024-01.com.example:b' }));
    await next(rig.target.addPort({ address: '::1' }));
    await next(rig.target.setHosts(NQN, { allowAnyHost: true, hosts: [] }));
    await next(rig.target.removePort('::1', 4420));
    await next(rig.target.removeSubsystem('nqn.2024-01.com.example:b'));
    expect(seen).to.deep.equal([...seen].sort((a, b) => Number(a - b)));
    expect(new Set(seen).size).to.equal(seen.length);
    expect((await readDiscovery(admin)).genctr).to.equal(seen.at(-1));
  });

  it('tells a host that waits about changes', async () => {
    const admin = await start(['127.0.0.1']);
    expect((await admin.setFeature(0x0b, 0x8000_0000)).status).to.equal('success');
    expect((await admin.setFeature(0x0b, 0x100)).status).to.equal('invalidField');
    const event = await admin.requestEvent();
    await rig.target.addSubsystem({ nqn: 'nqn.2024-01.com.example:b' });
    await settle();
    expect(admin.answered(event)?.result).to.equal(0x70_f0_02n);
    const second = await admin.requestEvent();
    await rig.target.removeSubsystem('nqn.2024-01.com.example:b');
    await settle();
    expect(admin.answered(second)).to.equal(undefined);
    await readDiscovery(admin);
    await rig.target.addPort({ address: '::1' });
    await settle();
    expect(admin.answered(second)?.result).to.equal(0x70_f0_02n);
  });

  it('leaves nothing behind after fifty rounds, and after a port that comes and goes', async () => {
    await start(['127.0.0.1']);
    for (let round = 0; round < 50; round++) {
      const admin = await rig.host({}, { subnqn: DISCOVERY_NQN });
      await rig.target.addPort({ address: '::1', port: 4500 });
      await rig.target.removePort('::1', 4500);
      await readDiscovery(admin);
      await admin.disconnect();
    }
    expect(rig.target.controllers.length).to.equal(1);
  });
});
