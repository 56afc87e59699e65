/** What a target logs of its life: one record of each thing. */
import { expect } from 'chai';
import { HOST_NQN, MEMORY, NQN, Rig, settle } from './support.ts';

describe('log of a target', () => {
  it('has one record for each thing that happens', async () => {
    const rig = await Rig.start(MEMORY);
    const host = await rig.host();
    await rig.ioQueue((await host.identifyController()).cntlid);
    await rig.target.addNamespace(NQN, { nsid: 7, null: '1M' });
    await host.disconnect();
    await settle();
    await rig.stop();
    expect(rig.log).to.deep.equal([
      'listening',
      'host connected',
      'I/O queue connected',
      'namespace changed',
      'I/O queue closed',
      'host gone',
      'counters',
    ]);
    const fieldsOf = (message: string): object | undefined =>
      rig.records.find(([text]) => text === message)?.[1];
    expect(fieldsOf('listening')).to.deep.equal({ endpoint: '127.0.0.1:4420' });
    expect(fieldsOf('host connected')).to.include({ hostNqn: HOST_NQN, subsystemNqn: NQN });
    expect(fieldsOf('host gone')).to.include({ reason: 'disconnected by the host' });
    expect(fieldsOf('namespace changed')).to.deep.equal({ subsystemNqn: NQN, nsid: 7 });
  });

  it('warns of an I/O queue that ends as nobody expects, and only of that', async () => {
    const rig = await Rig.start(MEMORY);
    const { cntlid } = await (await rig.host()).identifyController();
    for (const [qid, reason] of [
      'the peer disconnected',
      'closed by the target',
      'cannot post work requests: post_send: the send queue is full',
    ].entries()) {
      const queue = await rig.ioQueue(cntlid, qid + 1);
      rig.door.endQueue(queue.id, reason);
      await settle();
    }
    await rig.stop();
    expect(rig.warnings.map(([message]) => message)).to.deep.equal(['I/O queue closed']);
    expect(rig.warnings[0]?.[1]).to.include({
      qid: 3,
      reason: 'cannot post work requests: post_send: the send queue is full',
    });
  });

  it('has the counters that are not zero, as they were before the end', async () => {
    const rig = await Rig.start(MEMORY);
    await rig.host();
    expect(rig.target.counters()).to.deep.equal({ 'live.queuePairs': 1, 'live.buffers': 0 });
    await rig.stop();
    const counters = rig.records.filter(([message]) => message === 'counters');
    expect(counters).to.deep.equal([['counters', { 'live.queuePairs': 1 }]]);
  });
});
