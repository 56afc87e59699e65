import { expect } from 'chai';
import { IdentifyIndependentNamespace, IdentifyNamespace } from '../../../native/wire/identify.ts';
import { ANA_STATE_NAMES } from '../../../target/index.ts';
import type { AnaRule, AnaStateName, NvmeofError } from '../../../target/index.ts';
import { failureOf } from '../../support/in-process.ts';
import {
  A,
  B,
  access,
  decode,
  errorOf,
  readLog,
  start,
  startWithHosts,
  statesAt,
} from './ana-support.ts';
import { NQN, settle } from './support.ts';
import type { HostQueue, Rig } from './support.ts';

describe('ANA states', () => {
  let rig: Rig;
  let a: HostQueue;
  let b: HostQueue;
  beforeEach(async () => {
    ({ rig, a, b } = await startWithHosts());
  });
  afterEach(() => rig.stop());

  it('are optimized unless told otherwise, and groups list their namespaces', async () => {
    expect(
      (await readLog(a)).groups.map(({ group, state, nsids }) => [group, state, nsids]),
    ).to.deep.equal([
      [1, 1, [1, 3]],
      [7, 1, [2]],
    ]);
    expect(access(rig)).to.deep.equal([]);
  });

  const EXPECTED: Readonly<Record<AnaStateName, readonly [wire: number, refusal?: string]>> = {
    optimized: [1],
    'non-optimized': [2],
    inaccessible: [3, 'anaInaccessible'],
    'persistent-loss': [4, 'anaPersistentLoss'],
    change: [0xf, 'anaTransition'],
  };

  it('each show in the log of their port alone, and native is told what to refuse', async () => {
    for (const state of ANA_STATE_NAMES) {
      rig.door.calls.length = 0;
      await rig.target.setAnaState(NQN, { group: 1, state, port: B });
      const [wire, refusal] = EXPECTED[state];
      expect(await statesAt(b), state).to.deep.equal({ 1: wire, 7: 1 });
      expect(await statesAt(a), state).to.deep.equal({ 1: 1, 7: 1 });
      expect(access(rig), state).to.deep.equal(refusal === undefined ? [] : [`2 1 ${refusal}`]);
    }
    rig.door.calls.length = 0;
    await rig.target.setAnaState(NQN, { group: 1, state: 'non-optimized', port: B });
    expect(access(rig)).to.deep.equal(['2 1 success']);
  });

  it('hold at all ports when none is named, whatever single ports had', async () => {
    await rig.target.setAnaState(NQN, { group: 7, state: 'non-optimized', port: A });
    await rig.target.setAnaState(NQN, { group: 7, state: 'inaccessible' });
    expect([await statesAt(a), await statesAt(b)]).to.deep.equal([
      { 1: 1, 7: 3 },
      { 1: 1, 7: 3 },
    ]);
    expect(rig.target.config.subsystems[0]?.ana).to.deep.equal([
      { group: 7, state: 'inaccessible' },
    ]);
    await rig.target.setAnaState(NQN, { group: 7, state: 'optimized', port: B });
    await rig.target.setAnaState(NQN, { group: 7, state: 'optimized' });
    expect(rig.target.config.subsystems[0]?.ana).to.deep.equal([]);
  });

  it('that are as before change nothing and tell nobody', async () => {
    await rig.target.setAnaState(NQN, { group: 1, state: 'inaccessible' });
    const { changes } = await readLog(a);
    const calls = rig.door.calls.length;
    const logged = rig.log.length;
    await rig.target.setAnaState(NQN, { group: 1, state: 'inaccessible', port: A });
    expect([rig.door.calls.length, rig.log.length]).to.deep.equal([calls, logged]);
    expect((await readLog(a)).changes).to.equal(changes);
  });

  it('count the changes of the log and of each group', async () => {
    const before = await readLog(a);
    await rig.target.setAnaState(NQN, { group: 7, state: 'non-optimized', port: A });
    await rig.target.setAnaState(NQN, { group: 1, state: 'change', port: B });
    await rig.target.setAnaState(NQN, { group: 1, state: 'optimized', port: B });
    const after = await readLog(a);
    expect(after.changes - before.changes).to.equal(1n);
    const grown = after.groups.map(({ changes }, i) => changes - (before.groups[i]?.changes ?? 0n));
    expect(grown).to.deep.equal([0n, 1n]);
    await rig.target.disableNamespace(NQN, 3);
    const fewer = await readLog(a);
    expect(fewer.changes - after.changes).to.equal(1n);
    expect(fewer.groups[0]).to.deep.include({ nsids: [1] });
    await rig.target.resizeNamespace(NQN, 1, '2M');
    expect((await readLog(a)).changes).to.equal(fewer.changes);
  });

  it('are logged and emitted, one port at a time', async () => {
    const seen: unknown[] = [];
    rig.target.on('anaStateChanged', (...args) => seen.push(args));
    await rig.target.setAnaState(NQN, { group: 1, state: 'inaccessible' });
    const views = [A, B].map((port) => ({ port, group: 1, state: 'inaccessible' }));
    expect(seen).to.deep.equal(views.map((view) => [NQN, view]));
    const records = rig.records.filter(([message]) => message === 'ANA state changed');
    expect(records.map(([, fields]) => fields)).to.deep.equal(
      views.map((view) => ({ subsystemNqn: NQN, ...view })),
    );
    expect(rig.target.ana.filter(({ port }) => port === B)).to.deep.equal([
      { subsystemNqn: NQN, port: B, group: 1, state: 'inaccessible', nsids: [1, 3] },
      { subsystemNqn: NQN, port: B, group: 7, state: 'optimized', nsids: [2] },
    ]);
  });

  it('are refused by name: group, state, port, subsystem, key', async () => {
    const set = (rule: unknown, nqn = NQN): Promise<NvmeofError> =>
      errorOf(rig.target.setAnaState(nqn, rule as AnaRule));
    for (const group of [0, 129, 1.5, -1, '1']) {
      const { code, message } = await set({ group, state: 'optimized' });
      expect([code, message]).to.deep.equal([
        'CONFIG_INVALID',
        'ANA state: group: must be an ANA group, 1 to 128',
      ]);
    }
    expect((await set({ group: 1, state: 'slow' })).message).to.equal(
      'ANA state: state: must be one of optimized, non-optimized, inaccessible, persistent-loss, change',
    );
    expect((await set({ group: 1, state: 'change', port: 'eth0' })).message).to.include(
      'write ADDRESS:PORT',
    );
    const unknown = await set({ group: 1, state: 'change', port: '127.0.0.1:9' });
    expect([unknown.code, unknown.message]).to.deep.equal([
      'PORT_UNKNOWN',
      `ANA state: port: no port 127.0.0.1:9: the ports are ${A}, ${B}; name one, or leave "port" out for all`,
    ]);
    expect((await set({ group: 1, state: 'change', where: A })).message).to.include('"where"');
    expect((await set({ group: 1, state: 'change' }, 'nqn.2024-01.x:y')).code).to.equal(
      'SUBSYSTEM_UNKNOWN',
    );
    for (const group of [0, 129]) {
      expect((await errorOf(rig.target.setAnaGroup(NQN, 1, group))).code).to.equal(
        'CONFIG_INVALID',
      );
    }
    expect((await errorOf(rig.target.setAnaGroup(NQN, 9, 1))).code).to.equal('NAMESPACE_UNKNOWN');
    expect(access(rig)).to.deep.equal([]);
  });

  it('name a port in any way of writing its address', async () => {
    await rig.target.setAnaState(NQN, {
      group: 1,
      state: 'inaccessible',
      port: '::ffff:127.0.0.1',
    });
    expect((await statesAt(a))[1]).to.equal(3);
  });

  it('leave the size of a namespace, and take its utilization, where it cannot be used', async () => {
    const identify = async (host: HostQueue, nsid: number) =>
      IdentifyNamespace.decode((await host.identify({ cns: 0, nsid })).data);
    expect(await identify(a, 2)).to.include({ anagrpid: 7, nuse: 2048n, nvmcap: 1n << 20n });
    for (const [state, nuse] of [
      ['inaccessible', 0n],
      ['persistent-loss', 0n],
      ['change', 2048n],
      ['non-optimized', 2048n],
    ] as const) {
      await rig.target.setAnaState(NQN, { group: 7, state, port: A });
      const shown = await identify(a, 2);
      expect(shown, state).to.include({ nsze: 2048n, ncap: 2048n, nuse, nvmcap: nuse * 512n });
      expect((await identify(b, 2)).nuse).to.equal(2048n);
      expect((await identify(a, 1)).nuse).to.equal(2048n);
    }
    const { data } = await a.identify({ cns: 8, nsid: 2 });
    expect(IdentifyIndependentNamespace.decode(data).anagrpid).to.equal(7);
  });

  it('"change" that outlasts ANATT is warned of, once', async () => {
    await rig.target.setAnaState(NQN, { group: 7, state: 'change', port: A });
    rig.clock.advance(9_999);
    expect(rig.warnings).to.deep.equal([]);
    await rig.target.setAnaState(NQN, { group: 7, state: 'optimized', port: A });
    rig.clock.advance(60_000);
    expect(rig.warnings).to.deep.equal([]);
    await rig.target.setAnaState(NQN, { group: 7, state: 'change' });
    rig.clock.advance(10_000);
    expect(rig.warnings.map(([, fields]) => fields)).to.deep.equal(
      [A, B].map((port) => ({ subsystemNqn: NQN, port, group: 7 })),
    );
    rig.clock.advance(60_000);
    expect(rig.warnings.length).to.equal(2);
  });
});

describe('the ANA log page', () => {
  let rig: Rig;
  let a: HostQueue;
  beforeEach(async () => {
    rig = await start();
    a = await rig.host();
  });
  afterEach(() => rig.stop());

  it('without NSIDs when only groups are asked for', async () => {
    const { groups } = await readLog(a, 1);
    expect(groups.map(({ group, nsids }) => [group, nsids])).to.deep.equal([
      [1, []],
      [7, []],
    ]);
  });

  it('leaves out namespaces that are not enabled, and groups without any', async () => {
    await rig.target.disableNamespace(NQN, 2);
    expect((await readLog(a)).groups.map(({ group }) => group)).to.deep.equal([1]);
  });

  it('refuses offsets beyond its end or inside a dword', async () => {
    // As long as Identify lets a host expect it: nvme-cli reads that much in pieces.
    const { nanagrpid, mnan } = await a.identifyController();
    const bytes = 16 + nanagrpid * 32 + mnan * 4;
    for (let lpo = 0; lpo <= bytes; lpo += 4096) {
      const { status, data } = await a.log(0x0c, 4096, { lpo: BigInt(lpo) });
      expect([status, lpo > 0 && data.some((byte) => byte !== 0)]).to.deep.equal([
        'success',
        false,
      ]);
    }
    expect((await a.log(0x0c, 4, { lpo: BigInt(bytes) })).status).to.equal('success');
    for (const lpo of [BigInt(bytes) + 4n, 2n, 1n << 40n]) {
      const { status, dnr } = await a.log(0x0c, 4, { lpo });
      expect([status, dnr], `${lpo}`).to.deep.equal(['invalidField', true]);
    }
    expect((await a.log(0x0c, 64, { nsid: 1 })).status).to.equal('invalidField');
  });

  it('of 400 namespaces is right to the byte, whole and in pieces', async () => {
    const expected = new Map([
      [1, [1, 3]],
      [7, [2]],
    ]);
    for (let nsid = 400; nsid > 3; nsid--) {
      const anaGroup = 1 + (nsid % 5);
      await rig.target.addNamespace(NQN, { nsid, memory: '1M', anaGroup });
      expected.set(anaGroup, [...(expected.get(anaGroup) ?? []), nsid]);
    }
    const length = 16 + 6 * 32 + 400 * 4;
    const { data: whole } = await a.log(0x0c, 20_496);
    const { changes, groups } = decode(whole);
    expect(groups.map(({ group, nsids }) => [group, nsids])).to.deep.equal(
      [...expected]
        .sort(([x], [y]) => x - y)
        .map(([group, nsids]) => [group, nsids.sort((x, y) => x - y)]),
    );
    expect(groups.length).to.equal(6);
    expect(whole.subarray(length).every((byte) => byte === 0)).to.equal(true);
    const pieces: Uint8Array[] = [];
    for (let lpo = 0; lpo < length; lpo += 256) {
      pieces.push((await a.log(0x0c, 256, { lpo: BigInt(lpo) })).data);
    }
    expect(Buffer.concat(pieces).subarray(0, length).equals(whole.subarray(0, length))).to.equal(
      true,
    );
    expect(decode(Buffer.concat(pieces)).changes).to.equal(changes);
  }).timeout(20_000);

  it('read in pieces is one page, though it changes meanwhile; then the event comes again', async () => {
    await a.setFeature(0x0b, 1 << 11);
    const first = await a.log(0x0c, 64, { rae: true });
    await rig.target.setAnaState(NQN, { group: 7, state: 'inaccessible', port: A });
    await rig.target.disableNamespace(NQN, 1);
    const tag = await a.requestEvent();
    expect(a.answered(tag)?.result).to.equal(0x0c0302n);
    const next = await a.requestEvent();
    const second = await a.log(0x0c, 64, { lpo: 64n });
    const pieces = decode(Buffer.concat([first.data, second.data]));
    expect(pieces.groups.map(({ state, nsids }) => [state, nsids])).to.deep.equal([
      [1, [1, 3]],
      [1, [2]],
    ]);
    // The last piece cleared an event of something that this host has not seen.
    await settle();
    expect(a.answered(next)?.result).to.equal(0x0c0302n);
    const again = await readLog(a);
    expect(again.changes > pieces.changes).to.equal(true);
    expect(again.groups.map(({ state, nsids }) => [state, nsids])).to.deep.equal([
      [1, [3]],
      [3, [2]],
    ]);
    const last = await a.requestEvent();
    expect(a.answered(last)).to.equal(undefined);
  });
});

describe('ANA change events', () => {
  let rig: Rig;
  let a: HostQueue;
  let b: HostQueue;
  beforeEach(async () => {
    ({ rig, a, b } = await startWithHosts());
  });
  afterEach(() => rig.stop());

  it('reach the controllers of the port that asked for them, masked until the log is read', async () => {
    const silent = await rig.host();
    for (const host of [a, b]) await host.setFeature(0x0b, 1 << 11);
    const tags = await Promise.all([a, b, silent].map((host) => host.requestEvent()));
    await rig.target.setAnaState(NQN, { group: 1, state: 'inaccessible', port: A });
    await settle();
    const results = [a, b, silent].map((host, i) => host.answered(tags[i] ?? 0)?.result);
    expect(results).to.deep.equal([0x0c0302n, undefined, undefined]);

    const masked = await a.requestEvent();
    await rig.target.setAnaState(NQN, { group: 1, state: 'optimized', port: A });
    await a.log(0x0c, 64, { rae: true });
    await rig.target.setAnaState(NQN, { group: 1, state: 'change', port: A });
    await settle();
    expect(a.answered(masked)).to.equal(undefined);
    await a.log(0x0c, 64);
    await rig.target.setAnaState(NQN, { group: 1, state: 'optimized', port: A });
    await settle();
    expect(a.answered(masked)?.result).to.equal(0x0c0302n);
  });

  it('come once for all groups that changed before the log was read', async () => {
    await a.setFeature(0x0b, 1 << 11);
    await rig.target.setAnaState(NQN, { group: 1, state: 'inaccessible' });
    await rig.target.setAnaState(NQN, { group: 7, state: 'inaccessible' });
    const tags = [await a.requestEvent(), await a.requestEvent()];
    await settle();
    expect(tags.map((tag) => a.answered(tag)?.result)).to.deep.equal([0x0c0302n, undefined]);
  });

  it('refusing states are told while their I/O drains, others when native lets I/O through', async () => {
    const held: number[] = [];
    rig.door.onOperation = (_name, operation) => held.push(operation);
    await a.setFeature(0x0b, 1 << 11);
    const order: string[] = [];
    const tag = await a.requestEvent();
    const closing = rig.target
      .setAnaState(NQN, { group: 1, state: 'inaccessible', port: A })
      .then(() => order.push('closed'));
    await settle();
    expect([a.answered(tag)?.result, order.length]).to.deep.equal([0x0c0302n, 0]);
    expect((await statesAt(a))[1]).to.equal(3);

    rig.clock.advance(5000);
    expect(rig.warnings.map(([, fields]) => fields)).to.deep.equal([
      { subsystemNqn: NQN, group: 1, state: 'inaccessible', port: A },
    ]);
    // A drain that takes long holds up neither another group nor the way back.
    const other = rig.target.setAnaState(NQN, { group: 7, state: 'change', port: B });
    const opening = rig.target
      .setAnaState(NQN, { group: 1, state: 'optimized', port: A })
      .then(() => order.push('opened'));
    await settle();
    expect((await statesAt(b))[7]).to.equal(0xf);
    expect((await statesAt(a))[1]).to.equal(3);
    expect(held.length).to.equal(3);
    rig.door.endOperation(held[2] ?? 0);
    await opening;
    expect((await statesAt(a))[1]).to.equal(1);
    rig.door.endOperation(held[0] ?? 0);
    rig.door.endOperation(held[1] ?? 0);
    await Promise.all([closing, other]);
    expect(order).to.deep.equal(['opened', 'closed']);
    rig.door.onOperation = undefined;
  });

  it('1000 changes end in order, and the last one holds', async () => {
    await a.setFeature(0x0b, 1 << 11);
    const states = [
      'inaccessible',
      'optimized',
      'change',
      'non-optimized',
      'persistent-loss',
    ] as const;
    const ended: number[] = [];
    const timers = rig.clock.pending;
    const changes = Array.from({ length: 1000 }, (_, index) =>
      rig.target
        .setAnaState(NQN, {
          group: 1 + 6 * (index % 2),
          state: states[index % states.length] ?? 'optimized',
          ...(index % 3 === 0 ? {} : { port: index % 3 === 1 ? A : B }),
        })
        .then(() => ended.push(index)),
    );
    await Promise.all(changes);
    expect(ended.length).to.equal(1000);
    for (const group of [1, 7]) {
      await rig.target.setAnaState(NQN, { group, state: 'optimized' });
    }
    expect([await statesAt(a), await statesAt(b)]).to.deep.equal([
      { 1: 1, 7: 1 },
      { 1: 1, 7: 1 },
    ]);
    // What native refuses in the end is nothing.
    const last = new Map<string, string>();
    for (const call of access(rig)) {
      const [port, group, status] = call.split(' ');
      last.set(`${port} ${group}`, status ?? '');
    }
    expect([...last.values()].every((status) => status === 'success')).to.equal(true);
    expect(rig.clock.pending).to.equal(timers);
  }).timeout(20_000);
});

describe('ANA groups of namespaces', () => {
  let rig: Rig;
  let a: HostQueue;
  beforeEach(async () => {
    rig = await start();
    a = await rig.host();
  });
  afterEach(() => rig.stop());

  it('change while hosts are attached: log, identify, event, configuration', async () => {
    await a.setFeature(0x0b, 0x900);
    const tag = await a.requestEvent();
    const other = await a.requestEvent();
    await rig.target.setAnaGroup(NQN, 1, 9);
    await settle();
    // An ANA change, no namespace attribute change.
    expect([a.answered(tag)?.result, a.answered(other)]).to.deep.equal([0x0c0302n, undefined]);
    expect((await readLog(a)).groups.map(({ group, nsids }) => [group, nsids])).to.deep.equal([
      [1, [3]],
      [7, [2]],
      [9, [1]],
    ]);
    const { data } = await a.identify({ cns: 0, nsid: 1 });
    expect(IdentifyNamespace.decode(data).anagrpid).to.equal(9);
    expect(rig.target.config.subsystems[0]?.namespaces[0]?.anaGroup).to.equal(9);
    const [, , options] = rig.door.callsOf('setNamespace').at(-1)?.args as [number, number, object];
    expect(options).to.include({ anaGroup: 9 });
    expect(rig.log).to.include('ANA group changed');
  });

  it('stay as they were when native cannot', async () => {
    rig.door.onOperation = (name, operation) => {
      rig.door.endOperation(operation, name === 'setNamespace' ? 12 : 0, 0, 'no memory');
    };
    const before = await readLog(a);
    expect(await failureOf(rig.target.setAnaGroup(NQN, 1, 9)))
      .to.have.property('message')
      .that.includes('no memory');
    rig.door.onOperation = undefined;
    const after = await readLog(a);
    expect(after.groups[0]?.nsids).to.deep.equal([1, 3]);
    expect(after.changes > before.changes).to.equal(true);
    expect(rig.target.config.subsystems[0]?.namespaces[0]?.anaGroup).to.equal(1);
  });
});
