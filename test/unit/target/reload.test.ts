/** From one configuration to another while the target runs: the difference as steps, and back when a step fails. */
import { expect } from 'chai';
import { NvmeofError } from '../../../native/common/errors.ts';
import { parseConfig } from '../../../target/config.ts';
import type { TargetConfig, TargetOptions } from '../../../target/config.ts';
import { applySteps, difference } from '../../../target/reload.ts';
import { systemError } from '../../support/fake-door.ts';
import { HOST_NQN, NQN, Rig } from './support.ts';

const SECOND = 'nqn.2024-01.com.example:second';
const THIRD = 'nqn.2024-01.com.example:third';

const BEFORE: TargetOptions = {
  ports: [{ address: '127.0.0.1' }, { address: '127.0.0.1', port: 4421 }],
  subsystems: [
    {
      nqn: NQN,
      namespaces: [
        { nsid: 1, memory: '1M' },
        { nsid: 2, path: '/srv/a.img' },
        { nsid: 3, null: '1M' },
        { nsid: 4, null: '1M', enabled: false },
      ],
    },
    { nqn: SECOND, namespaces: [{ path: '/srv/b.img' }] },
  ],
  referrals: [{ address: '192.0.2.8' }],
};

/** Without the order in which things came. */
function sorted(config: TargetConfig): object {
  const by = <T>(all: readonly T[], key: (one: T) => string | number): T[] =>
    all.toSorted((a, b) => (key(a) < key(b) ? -1 : 1));
  return {
    ...config,
    ports: by(config.ports, ({ address, port }) => `${address} ${port}`),
    referrals: by(config.referrals, ({ address }) => address),
    subsystems: by(config.subsystems, ({ nqn }) => nqn).map((subsystem) => ({
      ...subsystem,
      namespaces: by(subsystem.namespaces, ({ nsid }) => nsid ?? 0),
    })),
  };
}

function failing(act: () => unknown): NvmeofError {
  try {
    act();
  } catch (error) {
    if (error instanceof NvmeofError) return error;
    throw error;
  }
  throw new Error('it did not fail');
}

describe('reload', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start(BEFORE);
  });
  afterEach(() => rig.stop());

  const to = async (options: TargetOptions): Promise<string[]> => {
    const wanted = parseConfig(options);
    const changes = await applySteps(rig.target, difference(rig.target.config, wanted));
    expect(sorted(rig.target.config)).to.deep.equal(sorted(wanted));
    expect(difference(rig.target.config, wanted)).to.deep.equal([]);
    return changes;
  };

  it('of the same changes nothing, however it is written', async () => {
    expect(await to(BEFORE)).to.deep.equal([]);
    expect(await to(rig.target.config)).to.deep.equal([]);
    const [first, ...rest] = BEFORE.subsystems ?? [];
    const upper = { ...BEFORE, ports: [{ address: '::ffff:127.0.0.1' }, ...BEFORE.ports.slice(1)] };
    const wanted = parseConfig({ ...upper, subsystems: [...rest, ...(first ? [first] : [])] });
    expect(difference(rig.target.config, wanted)).to.deep.equal([]);
  });

  it('changes what it can without taking it away, what is new before what goes', async () => {
    const host = await rig.host();
    const changes = await to({
      ports: [{ address: '127.0.0.1' }, { address: '::1' }],
      subsystems: [
        {
          nqn: NQN,
          hosts: [HOST_NQN],
          namespaces: [
            { nsid: 1, memory: '2M' },
            { nsid: 2, path: '/srv/a.img', writeProtected: true },
            { nsid: 3, null: '1M', enabled: false },
            { nsid: 4, null: '1M' },
            { nsid: 5, path: '/srv/c.img' },
          ],
        },
        { nqn: THIRD, namespaces: [{ memory: '1M' }] },
      ],
      referrals: [{ address: '192.0.2.9' }],
    });
    expect(changes).to.deep.equal([
      `resize namespace 1 of ${NQN} to 2097152 bytes`,
      `enable namespace 4 of ${NQN}`,
      `add namespace 5 of ${NQN}`,
      `add subsystem ${THIRD}`,
      'add port ::1 4420',
      'add referral rdma 192.0.2.9 4420',
      `protect namespace 2 of ${NQN}`,
      `disable namespace 3 of ${NQN}`,
      `set the hosts of ${NQN}`,
      `remove subsystem ${SECOND}`,
      'remove port 127.0.0.1 4421',
      'remove referral rdma 192.0.2.8 4420',
    ]);
    expect(host.open).to.be.true;
    expect(rig.door.callsOf('resizeBacking').length).to.equal(1);
  });

  it('replaces what is another thing under the same name', async () => {
    const [first, second] = BEFORE.subsystems ?? [];
    const namespaces = (first?.namespaces ?? []).map((one) =>
      one.nsid === 1 ? { nsid: 1, memory: '1M', blockSize: 4096 as const } : one,
    );
    const changes = await to({
      ...BEFORE,
      ports: [{ address: '127.0.0.1', queueDepth: 64 }, ...BEFORE.ports.slice(1)],
      subsystems: [
        { nqn: NQN, namespaces },
        { ...second, nqn: SECOND, serial: 'NEW' },
      ],
    });
    expect(changes).to.deep.equal([
      `remove namespace 1 of ${NQN}`,
      `remove subsystem ${SECOND}`,
      'remove port 127.0.0.1 4420',
      `add namespace 1 of ${NQN}`,
      `add subsystem ${SECOND}`,
      'add port 127.0.0.1 4420',
    ]);
  });

  it('takes a file from where it is before it goes elsewhere', async () => {
    const changes = await to({
      ...BEFORE,
      subsystems: [
        ...(BEFORE.subsystems ?? []).slice(0, 1),
        { nqn: THIRD, namespaces: [{ path: '/srv/b.img' }] },
      ],
    });
    expect(changes).to.deep.equal([`remove subsystem ${SECOND}`, `add subsystem ${THIRD}`]);
  });

  it('of which a step fails is undone, and says so', async () => {
    const before = sorted(rig.target.config);
    rig.door.onOpenBacking = ({ path }) => {
      if (path === '/srv/bad.img') throw systemError('ENOENT', '/srv/bad.img: no such file');
    };
    const wanted = parseConfig({
      ...BEFORE,
      ports: [{ address: '::1' }],
      subsystems: [
        { nqn: NQN, namespaces: [{ nsid: 1, memory: '4M' }] },
        // Its second namespace cannot be opened.
        { nqn: THIRD, namespaces: [{ memory: '1M' }, { path: '/srv/bad.img' }] },
      ],
    });
    const steps = difference(rig.target.config, wanted);
    await applySteps(rig.target, steps).then(
      () => expect.fail('done'),
      (error: unknown) => {
        expect(error).to.include({ code: 'CONFIG_RELOAD' });
        expect((error as Error).message).to.match(
          /^add subsystem .*:third: namespace 2: .*no such file; nothing has changed$/,
        );
      },
    );
    expect(sorted(rig.target.config)).to.deep.equal(before);
    expect(rig.target.ports.length).to.equal(2);
  });

  it('that could not be undone says what is left', async () => {
    rig.door.onOpenBacking = ({ path }) => {
      if (path === '/srv/b.img') throw systemError('ENOENT', 'it has gone');
    };
    const wanted = parseConfig({
      ...BEFORE,
      subsystems: [
        ...(BEFORE.subsystems ?? []).slice(0, 1),
        { nqn: SECOND, serial: 'NEW', namespaces: [{ path: '/srv/b.img' }] },
      ],
    });
    const steps = difference(rig.target.config, wanted);
    await applySteps(rig.target, steps).then(
      () => expect.fail('done'),
      (error: unknown) => {
        expect((error as Error).message).to.match(
          /remove subsystem .*:second could not be undone:/,
        );
      },
    );
    expect(rig.target.subsystems.map(({ nqn }) => nqn)).to.deep.equal([NQN]);
  });

  it('of what holds until the end is refused, with the keys', () => {
    const { config } = rig.target;
    const error = failing(() => difference(config, { ...config, mtu: 1024, provider: 'soft' }));
    expect(error).to.include({ code: 'CONFIG_RESTART' });
    expect(error.message).to.match(
      /^(mtu, provider|provider, mtu): cannot change while the target/,
    );
  });
});
