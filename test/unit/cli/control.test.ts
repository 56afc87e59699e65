/** Commands that change a running target: over a real control socket, to a target over the fake door. */
import { expect } from 'chai';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { once } from 'node:events';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ControlServer } from '../../../target/index.ts';
import { METHODS } from '../../../target/control/methods.ts';
import { defaultSocket, socketsToTry } from '../../../tools/cli/control/default-socket.ts';
import { controlFiles, staleControlFiles } from '../../../tools/control-schema.ts';
import { ControlRig } from '../target/control/support.ts';
import { NQN } from '../target/support.ts';
import { run } from './support.ts';
import type { Run } from './support.ts';

const SECOND = 'nqn.2024-01.com.example:second';
const HOST = 'nqn.2014-08.org.nvmexpress:uuid:4f0b3a52-7a11-4b0e-9f5c-0d3a2f7f1c11';

describe('commands to a running target', () => {
  let folder = '';
  let control: ControlRig;
  let server: ControlServer;
  beforeEach(async () => {
    folder = mkdtempSync(join(tmpdir(), 'nvmeof-commands-'));
    control = await ControlRig.start();
    server = await ControlServer.listen({ ...control.tools, path: join(folder, 'target.sock') });
  });
  afterEach(async () => {
    await server.close();
    await control.stop();
    rmSync(folder, { recursive: true });
  });

  const nvmeof = (...args: string[]): Promise<Run> => run([...args, '--socket', server.path]);
  /** What a command prints, which must succeed. */
  const output = async (...args: string[]): Promise<string> => {
    const { code, stdout, stderr } = await nvmeof(...args);
    expect(stderr, args.join(' ')).to.equal('');
    expect(code, args.join(' ')).to.equal(0);
    return stdout;
  };
  const json = async (...args: string[]): Promise<unknown> =>
    JSON.parse(await output(...args, '--json')) as unknown;

  it('status, controllers, log', async () => {
    await control.rig.host();
    expect(await output('status')).to.match(/^state +serving$/m);
    expect(await json('status')).to.include({ controllers: 1, version: '1.2.3' });
    expect(await output('controllers'))
      .to.contain('uuid:11111111')
      .and.to.contain('ready');
    expect(await output('controllers', SECOND)).to.equal('No host is attached.\n');
    expect(await output('log')).to.equal('info\n');
    expect(await output('log', 'debug')).to.equal('debug\n');
    expect(control.service.logLevel).to.equal('debug');
  });

  it('subsystem', async () => {
    const added = await output(
      'subsystem',
      'add',
      SECOND,
      '--export',
      'disk.img,ro',
      '--export',
      'memory:1MiB',
      '--allow',
      HOST,
      '--serial',
      'S1',
    );
    expect(added).to.equal(`Added ${SECOND} with 2 namespaces.\n`);
    const [first, second] = control.rig.target.subsystems;
    expect(first?.nqn).to.equal(NQN);
    expect(second).to.deep.include({ serial: 'S1', allowAnyHost: false, hosts: [HOST] });
    // The target runs in another folder.
    expect(second?.namespaces[0]).to.include({
      source: join(process.cwd(), 'disk.img'),
      readOnly: true,
    });
    expect(await output('subsystem', 'list'))
      .to.contain(SECOND)
      .and.to.contain('2 of 2');
    expect(await json('subsystem', 'list'))
      .to.be.an('array')
      .of.length(2);
    expect(await output('subsystem', 'remove', SECOND)).to.equal(`Removed ${SECOND}.\n`);
    expect(await output('subsystem', 'remove', NQN)).to.equal(`Removed ${NQN}.\n`);
    expect(await output('subsystem', 'list')).to.equal('There is no subsystem.\n');
  });

  it('namespace', async () => {
    expect(await output('namespace', 'add', NQN, 'memory:2MiB,bs=4096')).to.contain('read-write');
    expect(await output('namespace', 'resize', NQN, '2', '4MiB')).to.contain('4 MiB');
    expect(await output('namespace', 'protect', NQN, '2')).to.contain('write-protected');
    expect(await output('namespace', 'protect', NQN, '2', 'off')).to.contain('read-write');
    expect(await output('namespace', 'disable', NQN, '2')).to.contain('disabled');
    expect(await output('namespace', 'list', NQN))
      .to.contain('disabled')
      .and.to.contain('1 MiB');
    expect(await json('namespace', 'enable', NQN, '2')).to.include({ nsid: 2, size: 4 << 20 });
    expect(await output('namespace', 'remove', NQN, '2')).to.equal(
      `Removed namespace 2 of ${NQN}.\n`,
    );
    await output('namespace', 'remove', NQN, '1');
    expect(await output('namespace', 'list', NQN)).to.equal('It has no namespace.\n');
  });

  it('host', async () => {
    expect(await output('host', 'add', NQN, HOST)).to.equal(`Any host may connect.\n${HOST}\n`);
    expect(await output('host', 'set', NQN, HOST)).to.equal(`${HOST}\n`);
    expect(await output('host', 'remove', NQN, HOST)).to.equal('No host may connect.\n');
    expect(await output('host', 'set', NQN, '--any')).to.equal('Any host may connect.\n');
  });

  it('port and referral', async () => {
    const added = await output(
      'port',
      'add',
      '[::1]:4421',
      '--queue-depth',
      '64',
      '--in-capsule',
      '0',
    );
    expect(added).to.contain('::1').and.to.contain('64');
    expect(control.rig.target.config.ports[1]).to.include({ inCapsuleBytes: 0, queueDepth: 64 });
    expect(await json('port', 'list'))
      .to.be.an('array')
      .of.length(2);
    expect(await output('port', 'remove', '[::1]:4421')).to.contain('No longer listening');
    expect(await output('referral', 'list')).to.equal('There is no referral.\n');
    expect(await output('referral', 'add', '192.0.2.9:8009', '--transport', 'tcp')).to.contain(
      '8009',
    );
    await output('referral', 'remove', '192.0.2.9:8009', '--transport', 'tcp');
    expect(control.rig.target.referrals.all).to.deep.equal([]);
  });

  it('config, drain, resume, stop', async () => {
    const path = join(folder, 'target.json');
    expect(await output('config', 'save', path)).to.equal(`Saved to ${path}.\n`);
    expect(JSON.parse(await output('config', 'show'))).to.deep.equal(
      JSON.parse(readFileSync(path, 'utf8')),
    );
    expect(await output('config', 'reload')).to.equal('add port ::1 4420\n');
    await control.rig.host();
    expect(await output('drain', '--wait', '0')).to.contain('1 were ended');
    expect(await output('resume')).to.equal('Hosts may connect.\n');
    expect(await output('stop')).to.equal('Stopped.\n');
    expect(control.service.stops).to.equal(1);
  });

  it('rpc passes everything on, errors too', async () => {
    expect(JSON.parse(await output('rpc', 'log.get'))).to.deep.equal({ level: 'info' });
    const text = await output('rpc', 'namespace.list', `{"nqn":"${NQN}"}`);
    expect(JSON.parse(text)).to.be.an('array').of.length(1);
    const wrong = await nvmeof('rpc', 'namespace.list', '{"nqn":1}', '--json');
    expect(wrong.code).to.equal(2);
    expect(JSON.parse(wrong.stdout)).to.have.nested.property('error.data.problems[0].path', 'nqn');
    for (const params of ['{', '[]', '7', 'null']) {
      expect((await nvmeof('rpc', 'log.get', params)).code, params).to.equal(2);
    }
  });

  it('say what was wrong, with an exit code for what was typed and one for what was refused', async () => {
    const cases: readonly (readonly [string[], number, RegExp])[] = [
      [['namespace', 'remove', NQN, '7'], 1, /has no namespace 7/],
      [['namespace', 'remove', NQN, '0'], 2, /whole number from 1 to 4096/],
      [['namespace', 'remove', 'disk', '1'], 2, /nqn: the NQN has 4 bytes.*write one like/],
      [['namespace', 'add', NQN, 'memory:1M,serial=X'], 2, /belongs to the subsystem/],
      [['namespace', 'add', NQN, 'memory:1M,colour=red'], 2, /unknown option "colour=red"/],
      [['namespace', 'protect', NQN, '1', 'maybe'], 2, /Allowed choices are on, off/],
      [['subsystem', 'add', NQN], 1, /exists already/],
      [['port', 'add', 'localhost'], 2, /localhost/],
      [['port', 'add', '::1', '--queue-depth', '1'], 2, /queueDepth: .*>=32/],
      [['rpc', 'no.such'], 2, /no method "no.such"; rpc.discover lists/],
      [['config', 'save'], 1, /say where to save it/],
      [['subsystem'], 2, /Usage: nvmeof subsystem/],
    ];
    for (const [args, code, says] of cases) {
      const line = args.length === 1 ? await run(args) : await nvmeof(...args);
      expect(line.stderr, args.join(' ')).to.match(says);
      expect(line.code, args.join(' ')).to.equal(code);
    }
  });
});

describe('when no target answers', () => {
  it('a command says which socket it tried, and how to start one', async () => {
    const { code, stderr } = await run(['subsystem', 'list', '--socket', '/nonexistent/x.sock']);
    expect(code).to.equal(3);
    expect(stderr).to.equal(
      'nvmeof: no target answers at /nonexistent/x.sock: there is no such socket\n' +
        '  start one with: nvmeof target --export disk.img --control /nonexistent/x.sock; or say where it is: --socket PATH\n',
    );
  });

  for (const [what, answer, code, says] of [
    ['something else', 'SSH-2.0-OpenSSH_9.2\n', 1, /no control socket of nvmeof/],
    ['somebody who hangs up', '', 6, /hung up without an answer/],
    [
      'a target of another form',
      '{"jsonrpc":"2.0","id":1,"result":[{"x":1}]}\n',
      1,
      /in another form/,
    ],
  ] as const) {
    it(`${what} is told apart`, async () => {
      const folder = mkdtempSync(join(tmpdir(), 'nvmeof-other-'));
      const path = join(folder, 'x.sock');
      const other = createServer((socket) => {
        socket.on('error', () => undefined);
        socket.once('data', () => socket.end(answer));
      });
      other.listen(path);
      await once(other, 'listening');
      try {
        const result = await run(['subsystem', 'list', '--socket', path]);
        expect(result.stderr).to.match(says);
        expect(result.code).to.equal(code);
      } finally {
        other.close();
        await once(other, 'close');
        rmSync(folder, { recursive: true });
      }
    });
  }

  it('the default is where a target of the same user opens its socket', () => {
    const user = { root: false, runtimeFolder: '/run/user/1000' };
    expect(defaultSocket(user)).to.equal('/run/user/1000/nvmeof/target.sock');
    expect(defaultSocket({ root: false, runtimeFolder: undefined })).to.equal(undefined);
    expect(defaultSocket({ root: true, runtimeFolder: '/run/user/0' })).to.equal(
      '/run/nvmeof/target.sock',
    );
    expect(socketsToTry(user)).to.deep.equal([
      '/run/user/1000/nvmeof/target.sock',
      '/run/nvmeof/target.sock',
    ]);
    expect(socketsToTry({ root: false, runtimeFolder: '' })).to.deep.equal([
      '/run/nvmeof/target.sock',
    ]);
  });
});

describe('what is written of the control methods', () => {
  it('is what comes out of them: npm run gen:control', async () => {
    expect(await staleControlFiles()).to.deep.equal([]);
  });

  it('names every method, and where a parameter is needed', async () => {
    const [schema, guide] = await controlFiles();
    const { methods } = JSON.parse(schema?.text ?? '') as {
      methods: { name: string; params: { name: string; required: boolean; schema: object }[] }[];
    };
    expect(methods.map(({ name }) => name)).to.deep.equal(METHODS.map(({ name }) => name));
    const add = methods.find(({ name }) => name === 'namespace.add');
    expect(add?.params.map(({ name, required }) => [name, required])).to.deep.equal([
      ['nqn', true],
      ['namespace', true],
    ]);
    expect(add?.params[1]?.schema).to.have.nested.property('properties.blockSize');
    for (const { name } of METHODS) expect(guide?.text).to.contain(`| \`${name}\``);
  });
});
