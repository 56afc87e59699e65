import { expect } from 'chai';
import { ConnectInvalidResult, DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { Sqe } from '../../../native/wire/sqe.ts';
import { HOST_NQN, HostQueue, NQN, Rig, settle } from './support.ts';
import type { Answer } from './support.ts';

/** Where a Connect refusal points. */
function place({ status, result, dnr }: Answer): string {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(result);
  const { ipo, inData } = ConnectInvalidResult.decode(bytes);
  return `${String(status)} ${inData ? 'data' : 'sqe'} ${ipo}${dnr ? '' : ' retry'}`;
}

describe('connection requests', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start();
  });
  afterEach(() => rig.stop());

  it('are accepted with the depth the host asks for', async () => {
    await rig.queue(0);
    expect(rig.replyOf(0)).to.include({
      crqsize: 32,
      depth: 32,
      responderResources: 0,
      initiatorDepth: 16,
      inCapsuleBytes: 0,
    });
    await rig.queue(1, { hsqsize: 63 });
    expect(rig.replyOf(1)).to.include({ crqsize: 64, depth: 64, inCapsuleBytes: 4096 });
    await rig.queue(2, { hsqsize: 63, hrqsize: 16 });
    expect(rig.replyOf(2)).to.include({ crqsize: 16, depth: 16 });
  });

  it('are accepted from a host that offers initiator depth', async () => {
    expect(await rig.open(0, { initiatorDepth: 1, responderResources: 1 })).to.be.instanceOf(
      HostQueue,
    );
    expect(rig.replyOf(0)).to.include({ responderResources: 0, initiatorDepth: 1 });
  });

  const refused: readonly (readonly [string, number, object, number])[] = [
    ['private data of 31 bytes', 0, { raw: new Uint8Array(31) }, 1],
    ['no private data', 0, { raw: new Uint8Array() }, 1],
    ['another record format', 0, { recfmt: 1 }, 2],
    ['a queue id above the limit', 65, {}, 3],
    ['queue id 65535', 65535, {}, 3],
    ['an admin queue of 33 entries', 0, { hsqsize: 32 }, 4],
    ['an I/O queue deeper than CAP.MQES', 1, { hsqsize: 128 }, 4],
    ['HSQSIZE 65535', 1, { hsqsize: 65535, hrqsize: 65535 }, 4],
    ['a queue of one entry', 1, { hsqsize: 0 }, 4],
    ['no receive queue', 0, { hrqsize: 0 }, 5],
    ['one receive queue entry', 1, { hrqsize: 1 }, 5],
    ['no responder resources', 0, { responderResources: 0 }, 7],
    ['a controller that does not exist', 1, { cntlid: 77 }, 9],
  ];
  for (const [what, qid, request, status] of refused) {
    it(`are rejected for ${what}`, async () => {
      expect(await rig.open(qid, request)).to.deep.equal({ reason: 28, status });
      expect(rig.door.queues.size).to.equal(0);
    });
  }

  it('that do not go on to Connect are limited, and others still get in later', async () => {
    for (let round = 0; round < 256; round++) rig.request(0);
    expect(await rig.open(0)).to.deep.equal({ reason: 28, status: 6 });
    rig.clock.advance(10_000);
    await settle();
    expect(rig.door.queues.size).to.equal(0);
    expect((await (await rig.queue(0)).connect()).status).to.equal('success');
  });

  it('are limited later for I/O queues of controllers that are there', async () => {
    await rig.host();
    const cntlid = rig.target.controllers[0]?.cntlid ?? 0;
    expect(cntlid).to.be.greaterThan(0);
    for (let round = 0; round < 256; round++) rig.request(0);
    expect(await rig.open(0)).to.deep.equal({ reason: 28, status: 6 });
    expect(await rig.open(1, { cntlid: 0 }), 'names none').to.deep.equal({ reason: 28, status: 6 });
    for (let round = 256; round < 1024; round++) rig.request(1, { cntlid });
    await settle();
    expect(rig.door.queues.size).to.equal(1 + 1024);
    expect(await rig.open(2, { cntlid })).to.deep.equal({ reason: 28, status: 6 });
  });

  it('that are gone before they are answered cost nothing', async () => {
    const { onAccept } = rig.door;
    rig.door.onAccept = () => {
      throw new Error('there is no connection request');
    };
    rig.request(1);
    await settle();
    rig.door.onAccept = onAccept;
    expect(rig.target.placement.map(({ ioQueues }) => ioQueues)).to.deep.equal([0]);
    rig.door.queues.clear();
    expect((await (await rig.queue(0)).connect()).status).to.equal('success');
  });

  it('whose host never sends Connect are closed after ten seconds', async () => {
    const queue = await rig.queue(0);
    rig.clock.advance(9_999);
    await settle();
    expect(queue.open).to.equal(true);
    rig.clock.advance(1);
    await settle();
    expect(queue.open).to.equal(false);
  });
});

describe('Connect', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start();
  });
  afterEach(() => rig.stop());

  it('creates a controller, each with an id of its own', async () => {
    const first = await (await rig.queue(0)).connect();
    const second = await (await rig.queue(0)).connect();
    expect([first.status, first.result]).to.deep.equal(['success', 1n]);
    expect([second.status, second.result]).to.deep.equal(['success', 2n]);
    expect(rig.target.controllers.map(({ cntlid }) => cntlid)).to.deep.equal([1, 2]);
  });

  it('does not give a new association the id of the last one', async () => {
    const first = await rig.host();
    await first.disconnect();
    expect(rig.target.controllers).to.deep.equal([]);
    const again = await (await rig.queue(0)).connect();
    expect(again.result).to.equal(2n);
  });

  it('must be the first command of a queue', async () => {
    const queue = await rig.queue(0);
    for (const answer of [
      await queue.identify({ cns: 1 }),
      await queue.getProperty(0, 1),
      await queue.keepAlive(),
      await queue.command(0x02),
    ]) {
      expect(answer.status).to.equal('commandSequence');
    }
    const io = await rig.queue(1);
    expect((await io.command(0x02, { nsid: 1 }, 4096)).status).to.equal('commandSequence');
    expect((await queue.connect()).status).to.equal('success');
  });

  it('is refused the second time on a queue', async () => {
    const admin = await rig.host();
    expect((await admin.connect()).status).to.equal('commandSequence');
    const io = await rig.ioQueue(1);
    expect((await io.connect({ qid: 1 }, { cntlid: 1 })).status).to.equal('commandSequence');
    expect(rig.target.controllers.length).to.equal(1);
  });

  const longest = `nqn.2024-01.com.example:${'x'.repeat(223 - 24)}`;
  const inData: readonly (readonly [string, object, string])[] = [
    ['an empty host NQN', { hostnqn: '' }, 'data 512'],
    ['a host NQN without "nqn."', { hostnqn: 'iqn.2024-01.com.example:a' }, 'data 512'],
    ['a host NQN of 224 bytes', { hostnqn: `${longest}y` }, 'data 512'],
    ['a host NQN that is not terminated', { hostnqn: `${longest}${'y'.repeat(33)}` }, 'data 512'],
    ['a host NQN of month 13', { hostnqn: 'nqn.2024-13.com.example:a' }, 'data 512'],
    ['a host NQN with a cut UUID', { hostnqn: HOST_NQN.slice(0, -1) }, 'data 512'],
    ['a host NQN of 10 bytes', { hostnqn: 'nqn.2024-1' }, 'data 512'],
    ['an empty subsystem NQN', { subnqn: '' }, 'data 256'],
    ['a subsystem NQN not terminated', { subnqn: `${longest}${'y'.repeat(33)}` }, 'data 256'],
    ['an unknown subsystem', { subnqn: 'nqn.2024-01.com.example:other' }, 'data 256'],
    ['a subsystem NQN in capitals', { subnqn: NQN.replace('disk', 'Disk') }, 'data 256'],
    ['a host id of zeros', { hostid: new Uint8Array(16) }, 'data 0'],
    ['a fixed CNTLID', { cntlid: 1 }, 'data 16'],
    ['CNTLID FFFEh', { cntlid: 0xfffe }, 'data 16'],
    ['CNTLID 0', { cntlid: 0 }, 'data 16'],
  ];
  for (const [what, data, where] of inData) {
    it(`is refused for ${what}, and says where`, async () => {
      const answer = await (await rig.queue(0)).connect({}, data);
      expect(place(answer)).to.equal(`connectInvalid ${where}`);
      expect(rig.target.controllers).to.deep.equal([]);
      expect(rig.events.at(-1)?.[0]).to.equal('refused');
    });
  }

  it('takes NQNs of 223 bytes', async () => {
    expect(longest.length).to.equal(223);
    const answer = await (await rig.queue(0)).connect({}, { hostnqn: longest });
    expect(answer.status).to.equal('success');
  });

  it('is refused for another record format', async () => {
    const answer = await (await rig.queue(0)).connect({ recfmt: 1 });
    expect([answer.status, answer.dnr]).to.deep.equal(['connectIncompatible', true]);
  });

  it('takes SQSIZE 1 to 31 on an admin queue of 32', async () => {
    for (const sqsize of [0, 1, 31, 32, 65535]) {
      const answer = await (await rig.queue(0)).connect({ sqsize });
      const good = sqsize === 1 || sqsize === 31;
      expect(place(answer), `${sqsize}`).to.equal(good ? place(answer) : 'connectInvalid sqe 44');
      expect(answer.status === 'success', `${sqsize}`).to.equal(good);
    }
  });

  it('takes SQSIZE 1 to 127 on an I/O queue of 128, and never more than HSQSIZE', async () => {
    await rig.host();
    for (const [hsqsize, sqsize, good] of [
      [127, 0, false],
      [127, 128, false],
      [127, 65535, false],
      [31, 32, false],
      [31, 31, true],
      [127, 1, true],
    ] as const) {
      const queue = await rig.queue(1, { hsqsize });
      const answer = await queue.connect({ qid: 1, sqsize }, { cntlid: 1 });
      expect(answer.status, `${hsqsize} ${sqsize}`).to.equal(good ? 'success' : 'connectInvalid');
      if (!good) expect(place(answer)).to.equal('connectInvalid sqe 44');
      await queue.disconnect();
    }
  });

  it('is refused when its queue id is not that of the connection', async () => {
    const answer = await (await rig.queue(0)).connect({ qid: 1 });
    expect(place(answer)).to.equal('connectInvalid sqe 42');
  });

  it('is refused when data or SGL are short, long, or of a strange kind', async () => {
    const queue = await rig.queue(0);
    expect((await queue.connect({}, {}, { bytes: 1023 })).status).to.equal('sglDataLength');
    expect((await queue.connect({}, {}, { bytes: 1025 })).status).to.equal('sglDataLength');
    expect((await queue.connect({}, {}, { bytes: 0 })).status).to.equal('sglDataLength');
    expect((await queue.connect({}, new Uint8Array(1000))).status).to.equal('sglDataLength');
    for (const identifier of [0x00, 0x10, 0x20, 0x30, 0x41, 0x5a, 0x60, 0xf0]) {
      const raw = new Uint8Array(16);
      raw[15] = identifier;
      expect((await queue.connect({}, {}, { bytes: 0, raw })).status).to.equal('sglType');
    }
    expect((await queue.connect({ psdt: 0 })).status).to.equal('invalidField');
    expect((await queue.connect({ fuse: 1 })).status).to.equal('invalidField');
    expect((await queue.connect()).status).to.equal('success');
  });

  it('lets only the hosts of the list in', async () => {
    const nqn = 'nqn.2024-01.com.example:private';
    await rig.target.addSubsystem({ nqn, hosts: [HOST_NQN] });
    const other = 'nqn.2024-01.com.example:other-host';
    const refused = await (await rig.queue(0)).connect({}, { subnqn: nqn, hostnqn: other });
    expect([refused.status, refused.dnr]).to.deep.equal(['connectInvalidHost', true]);
    const allowed = await (await rig.queue(0)).connect({}, { subnqn: nqn });
    expect(allowed.status).to.equal('success');
  });

  it('ends the controllers of a host that is taken off the list', async () => {
    await rig.host();
    await rig.target.setHosts(NQN, { allowAnyHost: false, hosts: ['nqn.2024-01.com.example:b'] });
    expect(rig.target.controllers).to.deep.equal([]);
    expect(rig.door.queues.size).to.equal(0);
    expect((await (await rig.queue(0)).connect()).status).to.equal('connectInvalidHost');
  });
});

describe('Connect of an I/O queue', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start();
  });
  afterEach(() => rig.stop());

  it('binds the queue to the table of its subsystem', async () => {
    await rig.host();
    const queue = await rig.ioQueue(1);
    const [table] = [...rig.door.tables.keys()];
    const [lease] = [...rig.door.leases.keys()];
    expect(rig.door.callsOf('bindQueue').map(({ args }) => args)).to.deep.equal([
      [queue.id, { table, qid: 1, flowControlDisabled: false, cntlid: 1, port: 1, lease }],
    ]);
    const names = rig.door.calls.map(({ name }) => name);
    expect(names.lastIndexOf('bindQueue')).to.be.lessThan(names.lastIndexOf('complete'));
  });

  it('passes on that flow control is off', async () => {
    await rig.host();
    const queue = await rig.queue(1);
    const values = { qid: 1, sqsize: 127, disableSqFlowControl: true };
    expect((await queue.connect(values, { cntlid: 1 })).status).to.equal('success');
    expect(rig.door.callsOf('bindQueue')[0]?.args[1]).to.include({ flowControlDisabled: true });
  });

  it('is refused before there is a controller, or while it is not enabled', async () => {
    const early = await (await rig.queue(1)).connect({ qid: 1 }, { cntlid: 1 });
    expect(place(early)).to.equal('connectInvalid data 16');
    await (await rig.queue(0)).connect();
    const disabled = await (await rig.queue(1)).connect({ qid: 1 }, { cntlid: 1 });
    expect(disabled.status).to.equal('commandSequence');
    expect(rig.door.callsOf('bindQueue')).to.deep.equal([]);
  });

  it('is refused for another host, host id, subsystem or controller', async () => {
    await rig.host();
    await rig.target.addSubsystem({ nqn: 'nqn.2024-01.com.example:two' });
    const wrong: readonly (readonly [object, string])[] = [
      [{ hostnqn: 'nqn.2024-01.com.example:thief' }, 'data 512'],
      [{ hostid: new Uint8Array(16).fill(9) }, 'data 0'],
      [{ subnqn: 'nqn.2024-01.com.example:two' }, 'data 16'],
      [{ cntlid: 2 }, 'data 16'],
      [{ cntlid: 0xffff }, 'data 16'],
    ];
    for (const [data, where] of wrong) {
      const answer = await (await rig.queue(1)).connect({ qid: 1 }, { cntlid: 1, ...data });
      expect(place(answer)).to.equal(`connectInvalid ${where}`);
    }
  });

  it('is refused above the number of queues that was granted', async () => {
    const admin = await rig.host();
    await admin.setFeature(0x07, 0x0001_0001);
    await rig.ioQueue(1, 1);
    await rig.ioQueue(1, 2);
    const third = await (await rig.queue(3)).connect({ qid: 3 }, { cntlid: 1 });
    expect(place(third)).to.equal('connectInvalid sqe 42');
  });

  it('waits for the queue that had the id before', async () => {
    await rig.host();
    const old = await rig.ioQueue(1);
    const fresh = await rig.queue(1);
    const connecting = fresh.connect({ qid: 1, sqsize: 127 }, { cntlid: 1 });
    await old.disconnect();
    expect((await connecting).status).to.equal('success');
    expect(rig.target.controllers[0]?.queues.map(({ qid }) => qid)).to.deep.equal([1]);
  });

  it('is refused when the queue that has the id stays', async () => {
    await rig.host();
    await rig.ioQueue(1);
    const fresh = await rig.queue(1);
    // Not answered while it waits.
    const early = await fresh
      .connect({ qid: 1, sqsize: 127 }, { cntlid: 1 })
      .catch((error: unknown) => (error as Error).message);
    expect(early).to.equal('no answer');
    rig.clock.advance(1000);
    await settle();
    const last = rig.door.completed.at(-1);
    expect(last?.queue).to.equal(fresh.id);
    expect((last?.status ?? 0) & 0x7ff).to.equal(0x0c);
  });

  it('can be repeated thousands of times on one id', async () => {
    await rig.host();
    for (let round = 0; round < 200; round++) {
      const queue = await rig.ioQueue(1);
      rig.door.endQueue(queue.id, 'gone');
    }
    await settle();
    expect(rig.target.controllers[0]?.queues).to.deep.equal([]);
    expect(rig.target.placement.map(({ ioQueues }) => ioQueues)).to.deep.equal([0]);
  });

  it('is not for discovery controllers', async () => {
    const admin = await rig.queue(0);
    await admin.connect({}, { subnqn: DISCOVERY_NQN });
    await admin.enable();
    const answer = await (
      await rig.queue(1)
    ).connect({ qid: 1 }, { cntlid: 1, subnqn: DISCOVERY_NQN });
    expect(answer.status).to.equal('connectInvalid');
  });

  it('leaves the other connections working when one is refused', async () => {
    const admin = await rig.host();
    await (await rig.queue(0)).connect({}, { hostnqn: '' });
    await (await rig.queue(0)).send(Sqe.encode({ opcode: 0xff }));
    expect((await admin.identify({ cns: 1 })).status).to.equal('success');
  });
});
