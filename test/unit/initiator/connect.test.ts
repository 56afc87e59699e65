/** Bring-up against a fake controller: order of commands, what is sent, what is refused, and that nothing is left. */
import { expect } from 'chai';
import type { ConnectOptions } from '../../../initiator/options.ts';
import { connectIn } from '../../../initiator/connect.ts';
import { ConnectError, ArgumentError } from '../../../initiator/errors.ts';
import { CmRequestPrivateData, ConnectCommand, ConnectData } from '../../../native/wire/fabrics.ts';
import type { IdentifyController } from '../../../native/wire/identify.ts';
import { SetFeaturesCommand } from '../../../native/wire/sqe.ts';
import { parseUuid } from '../../../native/common/uuid.ts';
import { ProviderUnavailableError } from '../../../native/shared-runtime.ts';
import { systemError } from '../../support/fake-door.ts';
import { HOST_ID, HOST_NQN, makeBench, rejection, settle } from './support.ts';
import type { Bench } from './support.ts';
import { NQN } from './fake-controller.ts';

function expectNothingLeft({ door, clock }: Bench): void {
  expect(door.queues.size, 'queues').to.equal(0);
  expect(door.buffers.size, 'buffers').to.equal(0);
  expect(door.devices.size, 'devices').to.equal(0);
  expect(door.started, 'reactors').to.equal(undefined);
  expect(clock.pending, 'timers').to.equal(0);
}

describe('connect', () => {
  it('brings a controller up in the order of a Linux host', async () => {
    const bench = makeBench();
    const controller = await bench.connect({ queues: 2, cores: [-1, -1] });
    expect(bench.peer.log).to.deep.equal([
      'Connect 0',
      'Get CAP',
      'Set CC',
      'Get CSTS',
      'Set CC',
      'Get CSTS',
      'Get VS',
      'identify 01',
      'setFeatures 07',
      'Connect 1',
      'Connect 2',
      'setFeatures 0b',
      'asyncEventRequest',
      'identify 06',
      'identify 02',
      'identify 03',
      'identify 00',
    ]);
    expect(controller.state).to.equal('live');
    expect(controller.cntlid).to.equal(1);
    expect(controller.namespaces.map(({ nsid, lbaCount }) => [nsid, lbaCount])).to.deep.equal([
      [1, 2048n],
    ]);
    expect(controller.queues).to.deep.equal([
      { qid: 1, entries: 128, reactor: 0, outstanding: 0 },
      { qid: 2, entries: 128, reactor: 1, outstanding: 0 },
    ]);
    await controller.disconnect();
    expectNothingLeft(bench);
  });

  it('sends private data, Connect fields and CC as the specification says', async () => {
    const { peer, connect } = makeBench();
    const controller = await connect({ depth: 64, keepAliveMs: 7000 });
    const [admin, io] = peer.connects;
    expect(admin && CmRequestPrivateData.decode(admin.privateData)).to.deep.equal({
      recfmt: 0,
      qid: 0,
      hrqsize: 32,
      hsqsize: 31,
      cntlid: 0,
    });
    expect(admin?.inCapsuleBytes).to.equal(0);
    expect(io && CmRequestPrivateData.decode(io.privateData)).to.deep.equal({
      recfmt: 0,
      qid: 1,
      hrqsize: 64,
      hsqsize: 63,
      cntlid: 1,
    });
    expect(io?.inCapsuleBytes).to.equal(4096);
    expect(io?.responderResources).to.equal(16);
    expect(io?.initiatorDepth).to.equal(0);
    const connects = peer.commands.filter((command) => peer.nameOf(command).startsWith('Connect'));
    const [first, second] = connects.map(({ sqe }) => ConnectCommand.decode(sqe));
    expect(first).to.include({ qid: 0, sqsize: 31, kato: 7000, psdt: 1 });
    expect(second).to.include({ qid: 1, sqsize: 63, kato: 0 });
    const data = connects.map((command) => ConnectData.decode(command.data));
    expect(data[0]).to.deep.equal({
      hostid: parseUuid(HOST_ID),
      cntlid: 0xffff,
      subnqn: NQN,
      hostnqn: HOST_NQN,
    });
    expect(data[1]?.cntlid).to.equal(1);
    expect(peer.cc).to.include({ en: true, css: 6, mps: 0, iosqes: 6, iocqes: 4, shn: 0 });
    const events = peer.commands.find((command) => peer.nameOf(command) === 'setFeatures 0b');
    expect(events && SetFeaturesCommand.decode(events.sqe).cdw11).to.equal(0x100);
    await controller.disconnect();
    expect(peer.cc).to.include({ shn: 1 });
  });

  it('closes I/O queues, shuts the controller down, then closes the admin queue', async () => {
    const bench = makeBench();
    const controller = await bench.connect({ queues: 3 });
    const queues = [1, 2, 3, 0].map((qid) => bench.peer.queueOf(qid));
    bench.peer.log.length = 0;
    const before = bench.door.calls.length;
    await Promise.all([controller.disconnect(), controller.disconnect()]);
    const order = bench.door.calls
      .slice(before)
      .filter(({ name }) => name === 'closeQueue' || name === 'submit')
      .map(({ name, args }) => (name === 'closeQueue' ? args[0] : 'command'));
    expect(order).to.deep.equal([...queues.slice(0, 3), 'command', 'command', queues[3]]);
    expect(bench.peer.log).to.deep.equal(['Set CC', 'Get CSTS']);
    expect(controller.state).to.equal('disconnected');
    expectNothingLeft(bench);
  });

  it('limits queues and depth by what the controller grants', async () => {
    const cases: [Partial<{ mqes: number; maxcmd: number; granted: number }>, number, number][] = [
      [{ mqes: 31 }, 32, 4],
      [{ maxcmd: 16 }, 16, 4],
      [{ granted: 2 }, 128, 2],
      [{ maxcmd: 0 }, 128, 4],
    ];
    for (const [{ mqes = 127, maxcmd = 128, granted = 128 }, entries, queues] of cases) {
      const { peer, connect } = makeBench();
      peer.cap = { ...peer.cap, mqes };
      peer.controller = { ...peer.controller, maxcmd };
      peer.queuesGranted = granted;
      const controller = await connect({ queues: 4 });
      expect(controller.queues.map((queue) => queue.entries)).to.deep.equal(
        new Array(queues).fill(entries),
      );
      await controller.disconnect();
    }
  });

  it('opens an I/O queue on each reactor, unless told how many or granted fewer', async () => {
    const cases: [Partial<ConnectOptions>, number, number[], number][] = [
      [{}, 128, [0], 1],
      [{ cores: [4, 5, 6] }, 128, [0, 1, 2], 3],
      [{ cores: [4, 5, 6], queues: 5 }, 128, [0, 1, 2, 0, 1], 5],
      [{ cores: [4, 5, 6] }, 2, [0, 1], 3],
    ];
    for (const [options, granted, reactors, asked] of cases) {
      const { peer, connect } = makeBench();
      peer.queuesGranted = granted;
      const controller = await connect(options);
      expect(controller.queues.map(({ reactor }) => reactor)).to.deep.equal(reactors);
      expect(controller.queuesAsked).to.equal(asked);
      await controller.disconnect();
    }
  });

  it('waits for ready within the promised time, and not beyond', async () => {
    const bench = makeBench();
    bench.peer.readyPolls = 5;
    const slow = bench.connect();
    for (let i = 0; i < 10; i += 1) {
      await settle();
      bench.clock.advance(100);
    }
    await (await slow).disconnect();

    const never = makeBench();
    never.peer.readyPolls = Infinity;
    const failing = rejection(never.connect(), ConnectError);
    for (let i = 0; i < 120; i += 1) {
      await settle();
      never.clock.advance(100);
    }
    const error = await failing;
    expect(error.code).to.equal('CONNECT_NOT_READY');
    expect(error.message).to.contain('7500 ms');
    expectNothingLeft(never);
  });

  it('refuses a controller that reports a fatal status', async () => {
    const bench = makeBench();
    bench.peer.csts = { cfs: true, rdy: true };
    const error = await rejection(bench.connect(), ConnectError);
    expect(error.code).to.equal('CONNECT_UNUSABLE_CONTROLLER');
    expect(error.message).to.contain('CSTS.CFS');
    expectNothingLeft(bench);
  });

  describe('names the field of Identify Controller that cannot be used', () => {
    const cases: [string, Partial<IdentifyController>][] = [
      ['CNTLID', { cntlid: 2 }],
      ['SUBNQN', { subnqn: 'nqn.2024-01.org.example:other' }],
      ['CNTRLTYPE', { cntrltype: 2 }],
      ['KAS', { kas: 0 }],
      ['SGLS', { sglsSupport: 0 }],
      ['SGLS', { sglsKeyed: false }],
      ['IOCCSZ', { ioccsz: 3 }],
      ['IORCSZ', { iorcsz: 0 }],
      ['ICDOFF', { icdoff: 1 }],
      ['SQES', { sqes: 0x77 }],
      ['CQES', { cqes: 0x33 }],
      ['NN', { nn: 0, mnan: 0 }],
      ['MNAN', { mnan: 1024, nn: 16 }],
      ['MNAN', { mnan: 0, cmicAna: true, anagrpmax: 4, nanagrpid: 4 }],
      ['NANAGRPID', { cmicAna: true, anagrpmax: 4, nanagrpid: 5 }],
      ['NANAGRPID', { cmicAna: true, anagrpmax: 0, nanagrpid: 0 }],
      ['MDTS', { mdts: 200 }],
    ];
    for (const [field, change] of cases) {
      it(`${field} ${JSON.stringify(change)}`, async () => {
        const bench = makeBench();
        bench.peer.controller = { ...bench.peer.controller, ...change };
        const error = await rejection(bench.connect(), ConnectError);
        expect(error.code).to.equal('CONNECT_UNUSABLE_CONTROLLER');
        expect(error.object).to.equal(field);
        expect(error.message).to.contain(`field ${field} `);
        expectNothingLeft(bench);
      });
    }
  });

  it('picks another loopback address when one is taken, and shares a device it opened', async () => {
    const bench = makeBench();
    let refused = 0;
    bench.door.onOpenDevice = () => {
      refused += 1;
      if (refused <= 2) throw Object.assign(new Error('in use'), { code: 'EADDRINUSE' });
    };
    const first = await bench.connect();
    expect(first.sourceAddress).to.equal('127.9.9.3');
    const second = await bench.connect({ sourceAddress: '127.9.9.3' });
    expect(bench.door.callsOf('openDevice')).to.have.length(3);
    await first.disconnect();
    expect(bench.door.devices.size).to.equal(1);
    await second.disconnect();
    expectNothingLeft(bench);
  });

  it('does not blame the address for a provider that is not there', async () => {
    const bench = makeBench();
    bench.door.onOpenDevice = ({ provider }) => {
      if (provider === 'verbs') throw systemError('EOPNOTSUPP', 'no such provider');
    };
    for (const options of [{}, { address: '198.51.100.7' }]) {
      const error = await rejection(
        bench.connect({ ...options, provider: 'verbs' }),
        ProviderUnavailableError,
      );
      expect(error.code).to.equal('PROVIDER_UNAVAILABLE');
      expect(error.message).to.match(/verbs provider cannot be used: no such provider.*"soft"/);
    }
    expectNothingLeft(bench);
  });

  it('refuses options that an open address does not have, and takes another one where it may', async () => {
    const bench = makeBench();
    const loopbacks = ['127.9.0.1', '127.9.0.1', '127.9.0.2'];
    const source = {
      ...bench.environment.source,
      randomLoopback: () => loopbacks.shift() ?? '127.9.0.9',
    };
    const environment = { ...bench.environment, source };
    const base = { address: '127.0.0.1', nqn: NQN };
    const first = await connectIn(environment, base);
    const second = await connectIn(environment, { ...base, pathMtu: 512 });
    expect([first.sourceAddress, second.sourceAddress]).to.deep.equal(['127.9.0.1', '127.9.0.2']);
    const error = await rejection(
      connectIn(environment, { ...base, sourceAddress: '127.9.0.1', pathMtu: 512 }),
      ConnectError,
    );
    expect(error.code).to.equal('CONNECT_SOURCE_ADDRESS');
    expect(error.message).to.contain('with path MTU 1024, not 512');
    await first.disconnect();
    await second.disconnect();
    expectNothingLeft(bench);
  });

  it('leaves from one loopback address for all targets there', async () => {
    const bench = makeBench();
    const base = { address: '127.0.0.1', nqn: NQN };
    const first = await connectIn(bench.environment, base);
    const second = await connectIn(bench.environment, { ...base, address: '127.0.0.2' });
    expect(second.sourceAddress).to.equal(first.sourceAddress);
    await first.disconnect();
    const third = await connectIn(bench.environment, base);
    expect(third.sourceAddress).to.equal(first.sourceAddress);
    await third.disconnect();
    await second.disconnect();
    expectNothingLeft(bench);
  });

  it('gives the counters of the data path', async () => {
    const bench = makeBench();
    const controller = await bench.connect({ queues: 1 });
    expect(controller.counters()).to.include({ 'live.queuePairs': 2 });
    await controller.disconnect();
    expectNothingLeft(bench);
  });

  it('uses the routed address for other targets, and says when there is none', async () => {
    const bench = makeBench();
    const controller = await bench.connect({ address: '198.51.100.7' });
    expect(controller.sourceAddress).to.equal('192.0.2.1');
    await controller.disconnect();
    const error = await rejection(
      bench.connect({ address: '198.51.100.7', sourceAddress: 'x' }),
      ArgumentError,
    );
    expect(error.message).to.contain('source address');
    bench.door.onOpenDevice = () => {
      throw Object.assign(new Error('address in use'), { code: 'EADDRINUSE' });
    };
    const taken = await rejection(bench.connect({ address: '198.51.100.7' }), ConnectError);
    expect(taken.code).to.equal('CONNECT_SOURCE_ADDRESS');
    expect(taken.message).to.equal('cannot use 192.0.2.1 as source address: address in use');
    const loopback = await rejection(bench.connect(), ConnectError);
    expect(loopback.code).to.equal('CONNECT_SOURCE_ADDRESS');
    expectNothingLeft(bench);
  });

  it('asks for the next ACK timeout that connections can carry', async () => {
    const asked: [number, number][] = [
      [1, 8],
      [67, 14],
      [67.2, 15],
      [20, 13],
      [8000, 21],
    ];
    for (const [ackTimeoutMs, exponent] of asked) {
      const bench = makeBench();
      const controller = await bench.connect({ ackTimeoutMs });
      expect(bench.door.callsOf('openDevice').at(-1)?.args[0]).to.include({
        localAckTimeout: exponent,
      });
      await controller.disconnect();
    }
  });

  it('lets I/O queues, not the admin queue, look for a controller that fell silent', async () => {
    const bench = makeBench();
    const controller = await bench.connect({ queues: 2 });
    const probes = bench.door
      .callsOf('connect')
      .map(({ args }) => (args[1] as { probes?: boolean }).probes);
    expect(probes).to.deep.equal([false, true, true]);
    await controller.disconnect();
  });

  it('refuses options before it touches the network', async () => {
    const bench = makeBench();
    const wrong = [
      { nqn: '' },
      { nqn: 'iqn.2024-01.org.example:x' },
      { address: 'localhost' },
      { port: 0 },
      { queues: 0 },
      { depth: 1 },
      { depth: 4096 },
      { keepAliveMs: -1 },
      { keepAliveMs: 2 ** 32 },
      { pathMtu: 1500 },
      { connectTimeoutMs: 0 },
      { ackTimeoutMs: 0.9 },
      { ackTimeoutMs: 8001 },
      { ackTimeoutMs: NaN },
    ];
    for (const options of wrong) await rejection(bench.connect(options), ArgumentError);
    expect(bench.door.calls).to.deep.equal([]);
  });

  it('can be cancelled at any step, and leaves nothing', async () => {
    const steps = ['Connect 0', 'Get CAP', 'identify 01', 'Connect 1', 'identify 02'];
    for (const step of steps) {
      const bench = makeBench();
      const abort = new AbortController();
      bench.peer.stopAt(step);
      const failing = rejection(bench.connect({ signal: abort.signal }), ConnectError);
      await settle();
      expect(bench.peer.heldNames).to.include(step);
      abort.abort();
      expect((await failing).code, step).to.equal('CONNECT_CANCELLED');
      expectNothingLeft(bench);
    }
  });
});
