import { expect } from 'chai';
import { formatConfig, parseConfig } from '../../../target/index.ts';
import type { SubsystemOptions } from '../../../target/index.ts';
import { A, B, access, errorOf, start, statesAt } from './ana-support.ts';
import { NQN } from './support.ts';
import type { HostQueue } from './support.ts';

const UUID = '5c6e2a52-3cfd-4b3c-9d58-0a4c7f3d9a0';

describe('ANA in the configuration', () => {
  it('holds before the first host connects, and is written back as it is', async () => {
    const ana = [
      { group: 1, state: 'inaccessible' },
      { group: 1, state: 'non-optimized', port: B },
      { group: 7, state: 'persistent-loss', port: A },
    ] as const;
    const rig = await start({ ana: [...ana] });
    try {
      const a = await rig.host();
      const b = await rig.host({}, {}, { port: 4421 });
      expect([await statesAt(a), await statesAt(b)]).to.deep.equal([
        { 1: 3, 7: 4 },
        { 1: 2, 7: 1 },
      ]);
      expect(access(rig)).to.deep.equal(['1 1 anaInaccessible', '1 7 anaPersistentLoss']);
      expect(rig.target.config.subsystems[0]?.ana).to.deep.equal(ana);
      const { subsystems } = rig.target.config;
      const saved: unknown = JSON.parse(formatConfig(rig.target.config));
      expect(parseConfig(saved).subsystems).to.deep.equal(subsystems);
    } finally {
      await rig.stop();
    }
  });

  it('counts for a port that is added, is forgotten natively with it, and comes back with it', async () => {
    const rig = await start({ ana: [{ group: 1, state: 'inaccessible' }] });
    try {
      await rig.target.setAnaState(NQN, { group: 7, state: 'change', port: B });
      const port = { address: '127.0.0.1', port: 4422 };
      await rig.target.addPort(port);
      expect(access(rig).at(-1)).to.equal('3 1 anaInaccessible');
      await rig.target.removePort('127.0.0.1', 4421);
      expect(access(rig).slice(-2)).to.deep.equal(['2 1 success', '2 7 success']);
      expect(rig.target.config.subsystems[0]?.ana).to.deep.equal([
        { group: 1, state: 'inaccessible' },
      ]);
      rig.clock.advance(60_000);
      expect(rig.warnings).to.deep.equal([]);
      await rig.target.addPort({ address: '127.0.0.1', port: 4421 });
      expect(access(rig).slice(-2)).to.deep.equal(['4 1 anaInaccessible', '4 7 anaTransition']);
      await rig.target.addSubsystem({
        nqn: 'nqn.2024-01.com.example:late',
        ana: [{ group: 2, state: 'inaccessible', port: B }],
      });
      expect(access(rig).at(-1)).to.equal('4 2 anaInaccessible');
      const unknown = rig.target.addSubsystem({
        nqn: 'nqn.2024-01.com.example:later',
        ana: [{ group: 2, state: 'inaccessible', port: '127.0.0.1:1' }],
      });
      expect((await errorOf(unknown)).message).to.include('ana[0].port: no port 127.0.0.1:1');
    } finally {
      await rig.stop();
    }
  });

  it('names what is wrong, and where', () => {
    const problem = (subsystem: object): string => {
      try {
        parseConfig({
          ports: [{ address: '127.0.0.1' }],
          subsystems: [{ nqn: NQN, ...subsystem }],
        });
      } catch (error) {
        return (error as Error).message.replace('configuration: ', '');
      }
      return 'none';
    };
    const rules = (...ana: object[]): string => problem({ ana });
    expect(rules({ group: 1, state: 'change', port: '127.0.0.1' })).to.equal('none');
    expect(rules({ group: 0, state: 'change' })).to.equal(
      'subsystems[0].ana[0].group: must be an ANA group, 1 to 128',
    );
    expect(rules({ group: 1 })).to.include('subsystems[0].ana[0].state: must be one of optimized,');
    expect(rules({ group: 1, state: 'change', port: '127.0.0.1:4421' })).to.equal(
      `subsystems[0].ana[0].port: no port 127.0.0.1:4421: the ports are ${A}; name one, or leave "port" out for all`,
    );
    const twice = { group: 3, state: 'change' };
    expect(rules(twice, { ...twice, state: 'optimized' })).to.equal(
      'subsystems[0].ana[1]: group 3 has a state for all ports already; leave one of the two out',
    );
    expect(rules({ ...twice, port: A }, twice)).to.equal('none');
    expect(problem({ namespaces: [{ memory: '1M', anaGroup: 129 }] })).to.equal(
      'subsystems[0].namespaces[0].anaGroup: must be an ANA group, 1 to 128',
    );
    const ids = (first: unknown, last: unknown): string => problem({ cntlids: { first, last } });
    expect(ids(1, 0xffef)).to.equal('none');
    expect(ids(5, 5)).to.equal('none');
    expect(ids(0, 5)).to.equal('subsystems[0].cntlids.first: must be a controller id, 1 to 65519');
    expect(ids(1, 0xfff0)).to.include('subsystems[0].cntlids.last');
    expect(ids(6, 5)).to.equal(
      'subsystems[0].cntlids: first must not be above last; exchange them',
    );
  });
});

describe('targets that share a subsystem', () => {
  const disks = [
    { path: '/srv/a.img', shared: true },
    { path: '/srv/b.img', shared: true, uuid: `${UUID}1` },
  ];

  it('derive the same identities whatever their controller ids', () => {
    const identities = [
      { first: 1, last: 100 },
      { first: 101, last: 200 },
    ].map((cntlids) => {
      const config = parseConfig({
        ports: [{ address: '127.0.0.1' }],
        subsystems: [{ nqn: NQN, cntlids, namespaces: disks }],
      });
      return { ...config.subsystems[0], cntlids: undefined };
    });
    expect(identities[0]).to.deep.equal(identities[1]);
    expect(identities[0]?.serial).to.match(/^[0-9a-f]{20}$/);
  });

  it('give out ids of their range only, round and round, and say when none is free', async () => {
    const rig = await start({ cntlids: { first: 40, last: 42 } });
    try {
      const connect = async (): Promise<{ queue: HostQueue; status: unknown; cntlid: number }> => {
        const queue = await rig.queue(0);
        const { status, result } = await queue.connect();
        return { queue, status, cntlid: Number(result & 0xffffn) };
      };
      const hosts = [await connect(), await connect(), await connect()];
      expect(hosts.map(({ cntlid }) => cntlid)).to.deep.equal([40, 41, 42]);
      expect(await connect()).to.include({ status: 'connectBusy' });
      await hosts[1]?.queue.disconnect();
      expect(await connect()).to.include({ status: 'success', cntlid: 41 });
      expect(rig.target.config.subsystems[0]?.cntlids).to.deep.equal({ first: 40, last: 42 });
    } finally {
      await rig.stop();
    }
  });

  const warned = async (subsystem: Partial<SubsystemOptions>): Promise<string[]> => {
    const rig = await start(subsystem);
    await rig.stop();
    return rig.warnings.map(([text, fields]) => `${(fields as { nsid: number }).nsid} ${text}`);
  };

  it('are warned of what makes hosts refuse the second path', async () => {
    const cntlids = { first: 1, last: 9 };
    const [first, second, ...more] = await warned({ namespaces: disks });
    expect(first).to.match(/^1 .*"cntlids"/);
    expect(second).to.match(/^2 .*"cntlids"/);
    expect(more).to.deep.equal([]);
    const derived = await warned({ namespaces: disks, cntlids });
    expect(derived.length).to.equal(1);
    expect(derived[0]).to.match(/^1 .*write the same "uuid"/);
    const memory = await warned({ namespaces: [{ memory: '1M' }], cntlids });
    expect(memory.length).to.equal(1);
    expect(memory[0]).to.match(/^1 .*memory/);
    expect(
      await warned({ namespaces: [{ path: '/srv/c', uuid: `${UUID}2` }], cntlids }),
    ).to.deep.equal([]);
  });
});
