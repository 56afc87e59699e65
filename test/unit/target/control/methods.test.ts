/** What each method does to a target, and what it refuses. */
import { expect } from 'chai';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { loadConfig } from '../../../../target/index.ts';
import { RPC_CODE_MEANINGS, RpcCode } from '../../../../target/control/errors.ts';
import { METHODS } from '../../../../target/control/methods.ts';
import { systemError } from '../../../support/fake-door.ts';
import { HOST_NQN, NQN, settle } from '../support.ts';
import { ControlRig } from './support.ts';

const SECOND = 'nqn.2024-01.com.example:second';
const OTHER_HOST = 'nqn.2024-01.com.example:host';

describe('control methods', () => {
  let control: ControlRig;
  beforeEach(async () => {
    control = await ControlRig.start();
  });
  afterEach(() => control.stop());

  it('have names of their own, an example that fits, and a result as described', async () => {
    expect(new Set(METHODS.map(({ name }) => name)).size).to.equal(METHODS.length);
    await control.rig.host();
    for (const { name, params, example, kind, result } of METHODS) {
      expect(params.safeParse(example).success, name).to.be.true;
      expect(name).to.match(/^[a-z]+\.[a-z]+$/);
      if (kind !== 'look') continue;
      const answer = await control.call(
        name,
        params.safeParse({ nqn: NQN }).success ? { nqn: NQN } : {},
      );
      expect(result.safeParse(answer).error, name).to.equal(undefined);
    }
    for (const code of Object.values(RpcCode)) {
      expect(RPC_CODE_MEANINGS.map(([known]) => known)).to.include(code);
    }
  });

  it('of subsystems add all or nothing, and remove', async () => {
    const added = await control.call<{ serial: string; namespaces: unknown[] }>('subsystem.add', {
      nqn: SECOND,
      namespaces: [{ memory: '1MiB' }, { null: 1048576, enabled: false }],
    });
    expect(added.namespaces.length).to.equal(2);
    const listed = await control.call('subsystem.list', { nqn: SECOND });
    expect(listed).to.deep.equal([added]);
    expect(await control.refusal('subsystem.add', { nqn: SECOND })).to.include({
      code: RpcCode.thereAlready,
    });
    expect(await control.call('subsystem.remove', { nqn: SECOND })).to.equal(null);
    const gone = await control.refusal('subsystem.remove', { nqn: SECOND });
    expect(gone).to.include({ code: RpcCode.notThere });
    expect(gone.data).to.deep.equal({ code: 'SUBSYSTEM_UNKNOWN', object: SECOND });
    // The second namespace cannot be opened: nothing stays, and all of it can come later.
    const { door } = control.rig;
    const before = [door.backings.size, door.tables.size];
    door.onOpenBacking = ({ path }) => {
      if (path !== undefined) throw systemError('ENOENT', 'no such file');
    };
    const params = { nqn: SECOND, namespaces: [{ memory: '1M' }, { path: '/srv/a.img' }] };
    const failed = await control.refusal('subsystem.add', params);
    expect(failed).to.include({ code: RpcCode.failed });
    expect(failed.message).to.contain('namespace 2').and.to.contain('no such file');
    expect([door.backings.size, door.tables.size]).to.deep.equal(before);
    door.onOpenBacking = undefined;
    await control.call('subsystem.add', params);
  });

  it('two that remove a subsystem at once: the second hears that it is being removed', async () => {
    await control.rig.host();
    const remove = { jsonrpc: '2.0', id: 1, method: 'subsystem.remove', params: { nqn: NQN } };
    const [first, second] = await Promise.all([control.send(remove), control.send(remove)]);
    expect(first.result).to.equal(null);
    expect(second.error?.code).to.equal(RpcCode.notNow);
    expect(second.error?.data?.code).to.equal('SUBSYSTEM_REMOVING');
    await control.call('subsystem.add', { nqn: NQN });
  });

  it('of namespaces answer with what they are now', async () => {
    const one = { nqn: NQN, nsid: 2 };
    expect(
      await control.call('namespace.add', {
        nqn: NQN,
        namespace: { memory: '1M', blockSize: 4096 },
      }),
    ).to.include({ nsid: 2, enabled: true, source: 'memory', size: 1 << 20, blockSize: 4096 });
    expect(await control.call('namespace.resize', { ...one, size: '2MiB' })).to.include({
      size: 2 << 20,
    });
    expect(await control.call('namespace.resize', { ...one, size: 4096 })).to.include({
      size: 4096,
    });
    expect(await control.call('namespace.protect', { ...one, writeProtected: true })).to.include({
      writeProtected: true,
    });
    expect(await control.call('namespace.disable', one)).to.include({ enabled: false, size: 0 });
    expect(await control.call('namespace.enable', one)).to.include({
      enabled: true,
      writeProtected: true,
    });
    expect(await control.call('namespace.remove', one)).to.equal(null);
    for (const name of ['enable', 'disable', 'remove']) {
      const error = await control.refusal(`namespace.${name}`, one);
      expect(error.data?.code).to.equal('NAMESPACE_UNKNOWN');
    }
    expect(
      (await control.refusal('namespace.add', { nqn: NQN, namespace: { memory: '1M', nsid: 1 } }))
        .data?.code,
    ).to.equal('NAMESPACE_EXISTS');
  });

  const wrong: readonly (readonly [
    method: string,
    params: object,
    paths: readonly string[],
    says: RegExp,
  ])[] = [
    [
      'namespace.add',
      { nqn: NQN, namespace: { memry: 1 } },
      ['namespace', 'namespace'],
      /unknown key "memry"; check the spelling.*exactly one of/,
    ],
    [
      'namespace.add',
      { nqn: NQN, namespace: { memory: '1M', blockSize: 520 } },
      ['namespace.blockSize'],
      /must be 512 or 4096/,
    ],
    ['namespace.add', { nqn: NQN }, ['namespace'], /namespace: .*expected object/],
    [
      'namespace.resize',
      { nqn: NQN, nsid: 1, size: 'huge' },
      ['size'],
      /"huge" is not a size: write bytes/,
    ],
    ['namespace.resize', { nqn: NQN, nsid: 0, size: 1 }, ['nsid'], /nsid: .*>=1/],
    ['namespace.protect', { nqn: NQN, nsid: 1 }, ['writeProtected'], /expected boolean/],
    ['namespace.remove', { nsid: 1 }, ['nqn'], /nqn: .*expected string/],
    ['subsystem.add', { nqn: 'disk' }, ['nqn'], /write one like nqn\.2024-01/],
    [
      'subsystem.add',
      {
        nqn: SECOND,
        namespaces: [
          { nsid: 1, null: '1M' },
          { nsid: 1, null: '1M' },
        ],
      },
      ['namespaces[1].nsid'],
      /used twice; give one of them another/,
    ],
    ['port.add', { address: 'localhost' }, ['address'], /write an address of this machine/],
    ['port.add', { address: '127.0.0.1', port: 0 }, ['port'], /port: /],
    ['port.add', { address: '127.0.0.1', queueDepth: 65536 }, ['queueDepth'], /<=1024/],
    ['port.add', { address: '127.0.0.1', queueDepth: 0 }, ['queueDepth'], />=32/],
    ['port.add', { address: '127.0.0.1', maxQueues: 0 }, ['maxQueues'], />=1/],
    ['port.add', { address: '127.0.0.1', inCapsuleBytes: -16 }, ['inCapsuleBytes'], />=0/],
    ['port.add', { address: '127.0.0.1', secure: true }, [''], /unknown key "secure"/],
    ['host.add', { nqn: NQN, host: 'me' }, ['host'], /the NQN has 2 bytes/],
    ['target.drain', { waitMs: -1 }, ['waitMs'], />=0/],
    ['config.save', { path: 'here.json' }, ['path'], /must be an absolute path/],
    [
      'referral.add',
      { address: 'fe80::8%eth0' },
      ['address'],
      /a zone means something on one machine/,
    ],
  ];
  for (const [method, params, paths, says] of wrong) {
    it(`${method} refuses ${JSON.stringify(params)} by its place`, async () => {
      const before = control.rig.target.config;
      const error = await control.refusal(method, params);
      expect(error.code).to.equal(RpcCode.invalidParams);
      expect(error.message).to.match(says);
      expect(error.data?.code).to.equal('PARAMS_INVALID');
      expect(error.data?.problems?.map(({ path }) => path)).to.deep.equal(paths);
      expect(control.rig.target.config).to.deep.equal(before);
    });
  }

  it('of hosts change the list, and what follows from it', async () => {
    const host = await control.rig.host();
    const any = await control.refusal('host.remove', { nqn: NQN, host: HOST_NQN });
    expect(any.data?.code).to.equal('HOST_UNKNOWN');
    expect(await control.call('host.add', { nqn: NQN, host: HOST_NQN })).to.deep.equal({
      allowAnyHost: true,
      hosts: [HOST_NQN],
    });
    expect(
      (await control.refusal('host.remove', { nqn: NQN, host: HOST_NQN })).data?.code,
    ).to.equal('HOST_ANY');
    const hosts = [HOST_NQN, OTHER_HOST];
    const params = { nqn: NQN, hosts: [...hosts, HOST_NQN] };
    expect(await control.call('host.set', params)).to.deep.equal({ allowAnyHost: false, hosts });
    expect(host.open).to.be.true;
    expect((await control.refusal('host.add', { nqn: NQN, host: HOST_NQN })).data?.code).to.equal(
      'HOST_EXISTS',
    );
    await control.call('host.remove', { nqn: NQN, host: HOST_NQN });
    expect(host.open).to.be.false;
  });

  it('host.remove answers when the queues are gone', async () => {
    await control.call('host.set', { nqn: NQN, hosts: [HOST_NQN] });
    const host = await control.rig.host();
    const closing: number[] = [];
    control.rig.door.onCloseQueue = (queue) => closing.push(queue);
    let answered = false;
    const removal = control.call('host.remove', { nqn: NQN, host: HOST_NQN }).then(() => {
      answered = true;
    });
    await settle();
    expect([answered, closing]).to.deep.equal([false, [host.id]]);
    control.rig.door.endQueue(host.id, 'closed by the target');
    await removal;
  });

  it('of ports listen, refuse a place that is taken, and let go', async () => {
    const port = { address: '::1', port: 4421, inCapsuleBytes: 0 };
    expect(await control.call('port.add', port)).to.include({ ...port, id: 2, provider: 'soft' });
    const second = await control.refusal('port.add', { ...port, queueDepth: 64 });
    expect(second).to.include({ code: RpcCode.thereAlready });
    expect(second.message).to.contain('[::1]:4421');
    const large = await control.refusal('port.add', { address: '::1', inCapsuleBytes: 16_384 });
    expect(large.data?.code).to.equal('PORT_IN_CAPSULE');
    expect(await control.call('port.remove', { address: '0:0::1', port: 4421 })).to.equal(null);
    const gone = await control.refusal('port.remove', { address: '::1', port: 4421 });
    expect(gone).to.include({ code: RpcCode.notThere });
    await control.call('port.add', port);
  });

  it('of referrals', async () => {
    const referral = { address: '192.0.2.8' };
    expect(await control.call('referral.add', referral)).to.have.length(1);
    expect(await control.refusal('referral.add', referral)).to.include({
      code: RpcCode.thereAlready,
    });
    expect(await control.call('referral.remove', referral)).to.deep.equal([]);
    expect(await control.refusal('referral.remove', referral)).to.include({
      code: RpcCode.notThere,
    });
  });

  it('of the whole: status, drain, resume, reload, stop', async () => {
    await control.rig.host();
    expect(await control.call('target.status')).to.include({ state: 'serving', controllers: 1 });
    expect(await control.call('controller.list', { nqn: SECOND })).to.deep.equal([]);
    expect(await control.call('target.drain')).to.deep.equal({ left: 0, ended: 1, drained: true });
    expect(await control.call('target.status')).to.include({ state: 'drained', controllers: 0 });
    expect(await control.call('target.resume')).to.equal(null);
    expect(await control.call('config.reload')).to.deep.equal({ changes: ['add port ::1 4420'] });
    expect(await control.call('target.stop')).to.equal(null);
    expect([control.service.reloads, control.service.stops]).to.deep.equal([1, 1]);
  });

  it('config.save writes a file with which a target is the same', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-control-'));
    try {
      const none = await control.refusal('config.save');
      expect(none.data?.code).to.equal('CONFIG_NO_FILE');
      await control.call('subsystem.add', {
        nqn: SECOND,
        hosts: [HOST_NQN],
        namespaces: [{ path: '/srv/a.img' }],
      });
      await control.call('namespace.resize', { nqn: SECOND, nsid: 1, size: 8192 });
      await control.call('namespace.protect', { nqn: SECOND, nsid: 1, writeProtected: true });
      await control.call('namespace.disable', { nqn: NQN, nsid: 1 });
      await control.call('referral.add', { address: '192.0.2.8' });
      await control.call('port.add', { address: '::1' });
      const path = join(folder, 'target.json');
      control.service.configFile = path;
      expect(await control.call('config.save')).to.deep.equal({ path });
      expect(await loadConfig(path)).to.deep.equal(control.rig.target.config);
      const again = await ControlRig.start(await loadConfig(path));
      try {
        expect(await again.call('config.get')).to.deep.equal(await control.call('config.get'));
      } finally {
        await again.stop();
      }
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('changes that follow each other quickly are each drained by themselves', async () => {
    await control.call('namespace.add', { nqn: NQN, namespace: { memory: '1M' } });
    for (let round = 0; round < 1000; round++) {
      const nsid = 2;
      await Promise.all([
        control.call('namespace.resize', { nqn: NQN, nsid: 1, size: 4096 * (1 + (round % 7)) }),
        control.call('namespace.remove', { nqn: NQN, nsid }),
        control.call('namespace.add', { nqn: NQN, namespace: { memory: '1M', nsid } }),
      ]);
    }
    expect(control.rig.target.subsystems[0]?.namespaces.map(({ nsid }) => nsid)).to.deep.equal([
      1, 2,
    ]);
    expect(control.rig.door.backings.size).to.equal(2);
  }).timeout(20_000);
});
