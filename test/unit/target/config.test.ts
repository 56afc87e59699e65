import { expect } from 'chai';
import { chmod, mkdtemp, readFile, readdir, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { NvmeofError } from '../../../native/common/errors.ts';
import { formatConfig, loadConfig, parseConfig } from '../../../target/config.ts';
import { parseExport } from '../../../target/export-string.ts';
import { saveConfig } from '../../../target/save-config.ts';

const NQN = 'nqn.2024-01.com.example:disk';

function problem(value: unknown): string {
  try {
    parseConfig(value, 'target.json');
  } catch (error) {
    expect(error).to.be.instanceOf(NvmeofError);
    expect((error as NvmeofError).code).to.equal('CONFIG_INVALID');
    return (error as Error).message;
  }
  return 'none';
}

const FROZEN_UUID = '374da8d1-7fdc-5b85-9547-178d3b9713ab';

const port = { address: '127.0.0.1' };
const withPort = (changes: object): unknown => ({ ports: [{ ...port, ...changes }] });
const withSubsystem = (changes: object): unknown => ({
  ports: [port],
  subsystems: [{ nqn: NQN, ...changes }],
});
const withNamespace = (changes: object): unknown => withSubsystem({ namespaces: [changes] });

describe('target configuration', () => {
  it('fills in what is left out', () => {
    const config = parseConfig(withNamespace({ path: '/srv/a.img' }));
    expect(config.ports[0]).to.deep.equal({
      address: '127.0.0.1',
      port: 4420,
      inCapsuleBytes: 4096,
      queueDepth: 128,
      maxQueues: 64,
    });
    const [subsystem] = config.subsystems;
    expect(subsystem).to.include({ allowAnyHost: true, model: 'nvmeof' });
    expect(subsystem?.serial).to.match(/^[0-9a-f]{20}$/);
    expect(subsystem?.namespaces[0]).to.include({
      nsid: 1,
      blockSize: 512,
      readOnly: false,
      cache: 'write-back',
      shared: false,
    });
  });

  it('derives the same identities every time, and different ones for different exports', () => {
    const uuids = (value: unknown): (string | undefined)[] =>
      parseConfig(value).subsystems.flatMap(({ namespaces }) => namespaces.map(({ uuid }) => uuid));
    const two = withSubsystem({ namespaces: [{ path: '/a' }, { path: '/b' }, { memory: '1M' }] });
    expect(uuids(two)).to.deep.equal(uuids(two));
    expect(new Set(uuids(two)).size).to.equal(3);
    expect(uuids(withNamespace({ path: '/a' }))).to.deep.equal(uuids(two).slice(0, 1));
    const other = { ports: [port], subsystems: [{ nqn: `${NQN}2`, namespaces: [{ path: '/a' }] }] };
    expect(uuids(other)).not.to.deep.equal(uuids(withNamespace({ path: '/a' })));
    // Frozen: hosts know their disks by it.
    expect(uuids(withNamespace({ path: '/a' }))).to.deep.equal([FROZEN_UUID]);
    const [first] = parseConfig(withNamespace({ path: '/a' })).subsystems;
    expect(first?.namespaces[0]?.nguid).to.equal(FROZEN_UUID.replaceAll('-', ''));
  });

  it('gives NSIDs that are free', () => {
    const config = parseConfig(
      withSubsystem({ namespaces: [{ path: '/a' }, { nsid: 1, path: '/b' }, { path: '/c' }] }),
    );
    expect(config.subsystems[0]?.namespaces.map(({ nsid }) => nsid)).to.deep.equal([2, 1, 3]);
  });

  it('counts sizes with units', () => {
    const config = parseConfig(
      withSubsystem({ namespaces: [{ memory: '256MiB' }, { null: 1024 }, { memory: 4096n }] }),
    );
    expect(
      config.subsystems[0]?.namespaces.map((namespace) => namespace.memory ?? namespace.null),
    ).to.deep.equal([256n << 20n, 1024n, 4096n]);
  });

  const wrong: readonly (readonly [string, unknown, string])[] = [
    ['no ports', { ports: [] }, 'ports: needs at least one port'],
    ['an unknown key', { ports: [port], portz: 1 }, 'unknown key "portz"'],
    [
      'an unknown key deep inside',
      withNamespace({ path: '/a', readonly: true }),
      'namespaces[0]: unknown key "readonly"',
    ],
    [
      'a name for an address',
      withPort({ address: 'localhost' }),
      'ports[0].address: "localhost" is not',
    ],
    ['port 0', withPort({ port: 0 }), 'ports[0].port'],
    ['port 65536', withPort({ port: 65536 }), 'ports[0].port'],
    ['queue depth 0', withPort({ queueDepth: 0 }), 'ports[0].queueDepth'],
    ['queue depth 1', withPort({ queueDepth: 1 }), 'ports[0].queueDepth'],
    ['queue depth 65536', withPort({ queueDepth: 65536 }), 'ports[0].queueDepth'],
    ['in-capsule data of 100 bytes', withPort({ inCapsuleBytes: 100 }), 'ports[0].inCapsuleBytes'],
    ['negative in-capsule data', withPort({ inCapsuleBytes: -16 }), 'ports[0].inCapsuleBytes'],
    ['no queues', withPort({ maxQueues: 0 }), 'ports[0].maxQueues'],
    [
      'controller ids the wrong way round',
      withSubsystem({ cntlids: { first: 9, last: 8 } }),
      'subsystems[0].cntlids: first must not be above last',
    ],
    [
      'controller id 0',
      withSubsystem({ cntlids: { first: 0, last: 8 } }),
      'subsystems[0].cntlids.first',
    ],
    [
      'controller ids that NVMe reserves',
      withSubsystem({ cntlids: { first: 1, last: 0xfff0 } }),
      'subsystems[0].cntlids.last',
    ],
    [
      'a command quiesce time of 0, which is none',
      withSubsystem({ commandQuiesceMs: 0 }),
      'subsystems[0].commandQuiesceMs',
    ],
    [
      'a command quiesce time beyond 16 bits',
      withSubsystem({ commandQuiesceMs: 65_536 }),
      'subsystems[0].commandQuiesceMs',
    ],
    [
      'writes that are held for ever',
      withNamespace({ memory: 4096, delayWritesMs: 600_001 }),
      'subsystems[0].namespaces[0].delayWritesMs',
    ],
    ['a bad NQN', withSubsystem({ nqn: 'disk' }), 'subsystems[0].nqn: the NQN has 4 bytes'],
    [
      'the discovery NQN',
      withSubsystem({ nqn: 'nqn.2014-08.org.nvmexpress.discovery' }),
      'choose your own',
    ],
    ['a long serial', withSubsystem({ serial: 'x'.repeat(21) }), 'subsystems[0].serial'],
    ['a serial with umlauts', withSubsystem({ serial: 'ä' }), 'printable ASCII'],
    ['a bad host', withSubsystem({ hosts: ['me'] }), 'subsystems[0].hosts[0]'],
    ['no backing', withNamespace({}), 'namespaces[0]: needs exactly one of'],
    ['two backings', withNamespace({ path: '/a', memory: '1M' }), 'needs exactly one of'],
    [
      'a size that is none',
      withNamespace({ memory: 'big' }),
      'namespaces[0].memory: "big" is not a size',
    ],
    [
      'a second size',
      withNamespace({ memory: '1M', size: '2M' }),
      'namespaces[0].size: goes with "path" only, not with "memory"; write the size as the value of "memory"',
    ],
    [
      'a second size of nothing',
      withNamespace({ null: '1M', size: '1M' }),
      'namespaces[0].size: goes with "path" only, not with "null"',
    ],
    [
      'a cache mode of memory',
      withNamespace({ memory: '1M', cache: 'direct' }),
      'namespaces[0].cache: goes with "path" only, not with "memory"; leave it out',
    ],
    [
      'memory that skips the lock of a file',
      withNamespace({ null: '1M', shared: true }),
      'namespaces[0].shared: goes with "path" only, not with "null"',
    ],
    ['size 0', withNamespace({ memory: 0 }), 'must be a multiple of the block size'],
    [
      'a size between blocks',
      withNamespace({ memory: 5000, blockSize: 4096 }),
      'multiple of the block size 4096',
    ],
    ['blocks of 520 bytes', withNamespace({ path: '/a', blockSize: 520 }), 'must be 512 or 4096'],
    ['NSID 0', withNamespace({ path: '/a', nsid: 0 }), 'namespaces[0].nsid'],
    ['an NSID beyond the limit', withNamespace({ path: '/a', nsid: 4097 }), 'namespaces[0].nsid'],
    [
      'a bad UUID',
      withNamespace({ path: '/a', uuid: '1234' }),
      'namespaces[0].uuid: must be a UUID',
    ],
    ['a bad NGUID', withNamespace({ path: '/a', nguid: '12' }), 'must be 32 hex digits'],
    [
      'an NSID twice',
      withSubsystem({
        namespaces: [
          { nsid: 2, path: '/a' },
          { nsid: 2, path: '/b' },
        ],
      }),
      'namespaces[1].nsid: nsid 2 is used twice; give one of them another',
    ],
    [
      'an NQN twice',
      { ports: [port], subsystems: [{ nqn: NQN }, { nqn: NQN }] },
      'subsystems[1].nqn',
    ],
    [
      'two ports in one place',
      { ports: [port, { address: '::1' }, { address: '::ffff:127.0.0.1', queueDepth: 64 }] },
      'ports[2]: ::ffff:127.0.0.1 port 4420 is that of ports[0]; give it another address or port',
    ],
    [
      'a port under a wildcard',
      { ports: [{ address: '0.0.0.0' }, port] },
      'ports[1]: 127.0.0.1 port 4420 is that of ports[0]',
    ],
    [
      'a referral twice',
      { ports: [port], referrals: [{ address: '192.0.2.8' }, { address: '192.0.2.8' }] },
      'referrals[1]: 192.0.2.8 port 4420 is that of referrals[0]; leave it out',
    ],
    [
      'a referral with a zone',
      { ports: [port], referrals: [{ address: 'fe80::1%eth0' }] },
      'referrals[0].address: a zone means something on one machine only',
    ],
    [
      'a referral over something else',
      { ports: [port], referrals: [{ address: '192.0.2.8', transport: 'fc' }] },
      'referrals[0].transport',
    ],
    [
      'a control socket that is no path',
      { ports: [port], control: true },
      'control: must be the path',
    ],
    [
      'an unknown key of a referral',
      { ports: [port], referrals: [{ address: '192.0.2.8', name: 'x' }] },
      'referrals[0]: unknown key "name"; check the spelling',
    ],
    ['an odd MTU', { ports: [port], mtu: 1500 }, 'mtu: must be 256, 512'],
    ['not an object', 7, 'expected object'],
  ];
  for (const [what, value, text] of wrong) {
    it(`names the place of ${what}`, () => {
      expect(problem(value)).to.contain('target.json: ').and.to.contain(text);
    });
  }

  it('lists every problem at once', () => {
    const text = problem({ ports: [{ address: 'x' }], subsystems: [{ nqn: 'y' }] });
    expect(text.split('\n').length).to.equal(2);
  });

  it('survives saving and loading, identities and all', async () => {
    const folder = await mkdtemp(join(tmpdir(), 'nvmeof-config-'));
    try {
      const path = join(folder, 'target.json');
      const config = parseConfig(withSubsystem({ namespaces: [{ path: '/a' }, { memory: '1M' }] }));
      await saveConfig(path, config);
      expect(await loadConfig(path)).to.deep.equal(config);
      expect(await readFile(path, 'utf8')).to.equal(formatConfig(config));
      await saveConfig(path, { ...config, mtu: 1024 });
      expect((await loadConfig(path)).mtu).to.equal(1024);
      expect(await readdir(folder)).to.deep.equal(['target.json']);
      await writeFile(path, '{ "ports": [');
      await loadConfig(path).then(
        () => expect.fail('loaded'),
        (error: unknown) => {
          expect((error as Error).message).to.contain(`${path}: not JSON`);
        },
      );
      await loadConfig(join(folder, 'absent')).then(
        () => expect.fail('loaded'),
        (error: unknown) => {
          expect((error as NvmeofError).code).to.equal('CONFIG_UNREADABLE');
        },
      );
    } finally {
      await rm(folder, { recursive: true });
    }
  });
});

describe('saving a configuration', () => {
  let folder = '';
  beforeEach(async () => {
    folder = await mkdtemp(join(tmpdir(), 'nvmeof-config-'));
  });
  afterEach(() => rm(folder, { recursive: true }));
  const config = parseConfig(withNamespace({ path: 'disk.img' }));
  const failure = (promise: Promise<unknown>): Promise<NvmeofError> =>
    promise.then(
      () => expect.fail('saved'),
      (error: unknown) => error as NvmeofError,
    );

  it('replaces what a link leads to, and keeps its mode', async () => {
    const [path, link] = [join(folder, 'real.json'), join(folder, 'link.json')];
    await writeFile(path, 'old');
    await chmod(path, 0o640);
    await symlink(path, link);
    await saveConfig(link, config);
    expect((await stat(path)).mode & 0o777).to.equal(0o640);
    expect((await loadConfig(path)).subsystems.length).to.equal(1);
    expect((await readdir(folder)).sort()).to.deep.equal(['link.json', 'real.json']);
  });

  it('makes a new file for the owner alone, with paths that hold everywhere', async () => {
    const path = join(folder, 'new.json');
    await saveConfig(path, config);
    expect((await stat(path)).mode & 0o777).to.equal(0o600);
    const [namespace] = (await loadConfig(path)).subsystems[0]?.namespaces ?? [];
    expect(namespace?.path).to.equal(join(process.cwd(), 'disk.img'));
    expect(namespace?.uuid).to.equal(config.subsystems[0]?.namespaces[0]?.uuid);
  });

  it('leaves the old file when the new one cannot be', async () => {
    const path = join(folder, 'target.json');
    await writeFile(path, 'old');
    // Nobody could read it back.
    expect(await failure(saveConfig(path, { ...config, ports: [] }))).to.include({
      code: 'CONFIG_INVALID',
      message: `${path}: ports: needs at least one port to listen on`,
    });
    expect(await readFile(path, 'utf8')).to.equal('old');
    expect(await failure(saveConfig(join(folder, 'none', 'x.json'), config))).to.include({
      code: 'CONFIG_UNWRITABLE',
    });
    expect(await failure(saveConfig(folder, config))).to.include({ code: 'CONFIG_UNWRITABLE' });
    expect(await readdir(folder)).to.deep.equal(['target.json']);
  });
});

describe('export strings', () => {
  it('say the same as the configuration file', () => {
    expect(parseExport('/srv/a.img').namespace).to.include({ path: '/srv/a.img', blockSize: 512 });
    expect(parseExport('memory:256MiB').namespace.memory).to.equal(256n << 20n);
    expect(parseExport('null:1G,bs=4096').namespace).to.include({
      null: 1n << 30n,
      blockSize: 4096,
    });
    const full = parseExport(
      '/a,ro,bs=4096,uuid=0b1e8b9a-6f2c-4a34-9d33-0a6b0c2e1f55,serial=S1,cache=direct,shared,nsid=3',
    );
    expect(full.serial).to.equal('S1');
    expect(full.namespace).to.include({
      path: '/a',
      readOnly: true,
      blockSize: 4096,
      cache: 'direct',
      shared: true,
      nsid: 3,
    });
  });

  it('take commas in paths', () => {
    expect(parseExport('/a\\,b,ro').namespace).to.include({ path: '/a,b', readOnly: true });
  });

  for (const [text, says] of [
    ['', 'path'],
    ['memory:', 'not a size'],
    ['memory:0', 'multiple of the block size'],
    ['/a,rp', 'unknown option "rp"; known are ro'],
    ['/a,bs=513', 'blockSize: must be 512 or 4096'],
    ['/a,bs=', 'blockSize'],
    ['/a,cache=fast', 'cache'],
    ['/a,uuid=1', 'uuid: must be a UUID'],
  ] as const) {
    it(`refuse "${text}" and say why`, () => {
      expect(() => parseExport(text)).to.throw(NvmeofError, says);
      expect(() => parseExport(text)).to.throw(`--export ${text}`);
    });
  }
});
