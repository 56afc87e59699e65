/** A target that is taken out of service while it runs. */
import { expect } from 'chai';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { DiscoveryLogHeader } from '../../../native/wire/logs.ts';
import { MEMORY, Rig, settle } from './support.ts';

describe('drain', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start(MEMORY);
  });
  afterEach(() => rig.stop());

  it('ends what is attached, refuses who comes as busy, and tells discovery', async () => {
    const host = await rig.host();
    const discovery = await rig.host({}, { subnqn: DISCOVERY_NQN });
    await discovery.setFeature(0x0b, 0x8000_0000);
    const event = await discovery.requestEvent();
    expect(await rig.target.drain()).to.deep.equal({ left: 0, ended: 1, drained: true });
    expect(host.open).to.be.false;
    expect(discovery.open).to.be.true;
    expect(discovery.answered(event)?.result).to.equal(0x70_f0_02n);
    const page = await discovery.log(0x70, 1024);
    // The discovery service itself.
    expect(DiscoveryLogHeader.decode(page.data).numrec).to.equal(1n);
    const late = await rig.queue(0);
    const refused = await late.connect();
    expect(refused).to.include({ status: 'connectBusy', dnr: false });
    expect(rig.target.drained).to.be.true;
    // The same connection may try again.
    rig.target.resume();
    expect((await late.connect()).status).to.equal('success');
    expect(DiscoveryLogHeader.decode((await discovery.log(0x70, 1024)).data).numrec).to.equal(2n);
  });

  it('lets attached hosts go on while it waits: I/O queues connect, and who leaves is counted', async () => {
    const leaves = await rig.host();
    const stays = await rig.host();
    const { cntlid } = await stays.identifyController();
    const draining = rig.target.drain(60_000);
    await rig.ioQueue(cntlid);
    await leaves.disconnect();
    rig.clock.advance(59_999);
    await settle();
    expect(stays.open).to.be.true;
    rig.clock.advance(1);
    expect(await draining).to.deep.equal({ left: 1, ended: 1, drained: true });
    expect(stays.open).to.be.false;
  });

  it('ends at once when the last host has left', async () => {
    const host = await rig.host();
    const draining = rig.target.drain(60_000);
    await host.disconnect();
    expect(await draining).to.deep.equal({ left: 1, ended: 0, drained: true });
  });

  it('that is resumed while it waits ends nothing', async () => {
    const host = await rig.host();
    const draining = rig.target.drain(60_000);
    await settle();
    rig.target.resume();
    expect(await draining).to.deep.equal({ left: 0, ended: 0, drained: false });
    expect(host.open).to.be.true;
    rig.target.resume();
    expect(rig.target.drained).to.be.false;
  });

  it('does not keep a target from closing', async () => {
    await rig.host();
    const draining = rig.target.drain(60_000);
    await settle();
    await rig.target.close();
    expect(await draining).to.include({ drained: true });
  });
});
