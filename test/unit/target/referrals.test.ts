/** Referrals in the discovery log, live. */
import { expect } from 'chai';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { codeThrownBy } from '../../support/error-code.ts';
import { readDiscovery } from './discovery-support.ts';
import { MEMORY, Rig, settle } from './support.ts';
import type { HostQueue } from './support.ts';

describe('referrals', () => {
  let rig: Rig;
  afterEach(() => rig.stop());
  const start = async (referrals: { address: string }[] = []): Promise<HostQueue> => {
    rig = await Rig.start({ ...MEMORY, referrals });
    return rig.host({}, { subnqn: DISCOVERY_NQN });
  };

  it('of the configuration are listed once, after what is here', async () => {
    const admin = await start([{ address: '192.0.2.8' }]);
    const { entries, referrals } = await readDiscovery(admin);
    expect(entries.length).to.equal(3);
    expect(entries[2]).to.deep.equal(referrals[0]);
    expect(referrals[0]).to.include({
      trtype: 1,
      adrfam: 1,
      subtype: 1,
      cntlid: 0xffff,
      asqsz: 32,
      trsvcid: '4420',
      subnqn: DISCOVERY_NQN,
      traddr: '192.0.2.8',
      tsasRdmaQptype: 1,
      tsasRdmaPrtype: 1,
      tsasRdmaCms: 1,
    });
  });

  it('of TCP and IPv6, with a name of their own, say so', async () => {
    const admin = await start();
    const nqn = 'nqn.2024-01.com.example:discovery';
    rig.target.referrals.add({ address: '[2001:DB8::8]', port: 8009, transport: 'tcp', nqn });
    const [referral] = (await readDiscovery(admin)).referrals;
    expect(referral).to.include({ trtype: 3, adrfam: 2, trsvcid: '8009', traddr: '2001:db8::8' });
    expect(referral).to.include({ subnqn: nqn, tsasRdmaQptype: 0, tsasRdmaPrtype: 0 });
  });

  it('that come and go a hundred times are told, and counted', async () => {
    const admin = await start();
    await admin.setFeature(0x0b, 0x8000_0000);
    const where = { address: '192.0.2.8' };
    let last = (await readDiscovery(admin)).genctr;
    for (let round = 0; round < 100; round++) {
      for (const change of ['add', 'remove'] as const) {
        const event = await admin.requestEvent();
        expect(admin.answered(event)).to.equal(undefined);
        rig.target.referrals[change](where);
        await settle();
        expect(admin.answered(event)?.result).to.equal(0x70_f0_02n);
        const { genctr, referrals } = await readDiscovery(admin);
        expect(genctr > last).to.be.true;
        expect(referrals.length).to.equal(change === 'add' ? 1 : 0);
        last = genctr;
      }
    }
  }).timeout(20_000);

  it('are one where transport, address and port are the same', async () => {
    const admin = await start([{ address: '2001:db8::8' }]);
    const { referrals } = rig.target;
    const before = (await readDiscovery(admin)).genctr;
    expect(codeThrownBy(() => referrals.add({ address: '2001:DB8:0::8' }))).to.equal(
      'REFERRAL_EXISTS',
    );
    expect(codeThrownBy(() => referrals.remove({ address: '192.0.2.8' }))).to.equal(
      'REFERRAL_UNKNOWN',
    );
    expect(codeThrownBy(() => referrals.add({ address: 'there' }))).to.equal('CONFIG_INVALID');
    expect(codeThrownBy(() => referrals.add({ address: 'fe80::1%eth0' }))).to.equal(
      'CONFIG_INVALID',
    );
    expect((await readDiscovery(admin)).genctr).to.equal(before);
    referrals.add({ address: '2001:db8::8', port: 4421 });
    referrals.remove({ address: '[2001:db8::8]' });
    expect(referrals.all.map(({ port }) => port)).to.deep.equal([4421]);
    expect(rig.target.config.referrals).to.deep.equal(referrals.all);
  });
});
