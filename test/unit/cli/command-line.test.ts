/** Parsing, help and exit codes of the command line, without a network. */
import { expect } from 'chai';
import { Command, InvalidArgumentError } from 'commander';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  ArgumentError,
  CommandTimeoutError,
  ConnectError,
  DisconnectedError,
} from '../../../initiator/index.ts';
import type { ConnectOptions } from '../../../initiator/index.ts';
import { NvmeStatusError, NvmeofError } from '../../../native/common/errors.ts';
import { ProviderUnavailableError } from '../../../native/shared-runtime.ts';
import {
  addConnectOptions,
  addQueuesOption,
  byteCount,
  connectOptions,
  coreList,
  hostPort,
  listenPort,
  milliseconds,
  noteQueues,
  seconds,
  wholeNumber,
} from '../../../tools/cli/arguments.ts';
import type { ConnectFlags } from '../../../tools/cli/arguments.ts';
import { nbdCommands } from '../../../tools/cli/commands/attach.ts';
import { jobOf } from '../../../tools/cli/commands/bench.ts';
import { connectCommands, defaultNqn, targetConfig } from '../../../tools/cli/commands/target.ts';
import { CliError, toJson } from '../../../tools/cli/context.ts';
import { describeFailure } from '../../../tools/cli/failures.ts';
import { formatRecord } from '../../../tools/cli/logging.ts';
import { SUB_COMMANDS } from '../../../tools/cli/main.ts';
import { run } from './support.ts';

/** What a command with these options connects with. */
function connectionOf(add: (command: Command) => Command, args: string[]): ConnectOptions {
  const command = add(new Command()).exitOverride();
  command.configureOutput({ writeErr: () => undefined });
  const flags = command.parse(args, { from: 'user' }).opts<ConnectFlags>();
  return connectOptions({ address: '192.0.2.7', port: 4420 }, 'nqn', flags);
}

describe('arguments', () => {
  it('addresses with and without port', () => {
    expect(hostPort('192.0.2.1')).to.deep.equal({ address: '192.0.2.1', port: 4420 });
    expect(hostPort('192.0.2.1:4421')).to.deep.equal({ address: '192.0.2.1', port: 4421 });
    expect(hostPort('[::1]:5')).to.deep.equal({ address: '::1', port: 5 });
    expect(hostPort('FE80::1%lo')).to.deep.equal({ address: 'fe80::1%lo', port: 4420 });
    expect(hostPort('::ffff:127.0.0.1')).to.deep.equal({ address: '127.0.0.1', port: 4420 });
    for (const text of ['', 'localhost', '1.2.3', '1.2.3.4:0', '1.2.3.4:70000', '[::1']) {
      expect(() => hostPort(text), text).to.throw(InvalidArgumentError);
    }
  });

  it('sizes, numbers, times and cores', () => {
    expect(byteCount('4k')).to.equal(4096);
    expect(byteCount('1MiB')).to.equal(1 << 20);
    expect(() => byteCount('10PiB')).to.throw(InvalidArgumentError, 'too large');
    expect(() => byteCount('-1')).to.throw(InvalidArgumentError);
    expect(wholeNumber(1, 10)('10')).to.equal(10);
    for (const text of ['0', '11', '1.5', '1e1', '', 'x', '0x1']) {
      expect(() => wholeNumber(1, 10)(text), text).to.throw(InvalidArgumentError);
    }
    expect([
      milliseconds('250ms'),
      milliseconds('1.5s'),
      milliseconds('2m'),
      milliseconds('7'),
    ]).to.deep.equal([250, 1500, 120_000, 7]);
    expect([seconds('5'), seconds('0.5'), seconds('250ms')]).to.deep.equal([5000, 500, 250]);
    expect(() => milliseconds('soon')).to.throw(InvalidArgumentError);
    expect(coreList('0,2-4')).to.deep.equal([0, 2, 3, 4]);
    expect(coreList('-1')).to.deep.equal([-1]);
    for (const text of ['', 'a', '3-1', '1,1', '0-9999999']) {
      expect(() => coreList(text), text).to.throw(InvalidArgumentError);
    }
  });

  it('takes the cores of a port behind its address', () => {
    const at = { address: '192.0.2.7', port: 4421 };
    expect(listenPort('192.0.2.7:4421')).to.deep.equal(at);
    expect(listenPort('192.0.2.7:4421@2,4-5')).to.deep.equal({ ...at, cores: [2, 4, 5] });
    expect(listenPort('[fe80::1%eth0]@3')).to.deep.include({ port: 4420, cores: [3] });
    for (const text of ['192.0.2.7@', '192.0.2.7@-1', '192.0.2.7@a', '@1', '192.0.2.7@1@2']) {
      expect(() => listenPort(text), text).to.throw(InvalidArgumentError);
    }
  });

  it('asks for I/O queues by the name of nvme-cli, or the short one', async () => {
    const parsed = (...args: string[]): number | undefined =>
      connectionOf(addQueuesOption, args).queues;
    expect(parsed()).to.equal(undefined);
    expect(parsed('--nr-io-queues', '4')).to.equal(4);
    expect(parsed('-i', '5')).to.equal(5);
    expect(parsed('--queues', '6')).to.equal(6);
    for (const args of [
      ['-i', '0'],
      ['--queues', '129'],
      ['-i', '1', '--queues', '2'],
    ]) {
      expect(() => parsed(...args), args.join(' ')).to.throw();
    }
    const { stdout } = await run(['bench', '--help']);
    expect(stdout).to.match(/--nr-io-queues <n> +I\/O queues to ask for/);
  });

  it('takes the keep alive timeout by the name of nvme-cli in seconds, or the short one', () => {
    const parsed = (...args: string[]): number | undefined =>
      connectionOf(addConnectOptions, args).keepAliveMs;
    expect(parsed()).to.equal(undefined);
    expect(parsed('--keep-alive-tmo', '15')).to.equal(15_000);
    expect(parsed('--keep-alive-tmo', '500ms')).to.equal(500);
    expect(parsed('--keep-alive', '5s')).to.equal(5000);
    expect(parsed('--keep-alive', '250')).to.equal(250);
    expect(() => parsed('--keep-alive', '5s', '--keep-alive-tmo', '5')).to.throw();
  });

  it('says when fewer I/O queues are granted than asked for', () => {
    const notes: string[] = [];
    const context = { note: (text: string) => void notes.push(text) };
    const queue = { qid: 1, entries: 128, reactor: 0, outstanding: 0 };
    noteQueues(context, { queues: [queue, queue], queuesAsked: 2 });
    expect(notes).to.deep.equal([]);
    noteQueues(context, { queues: [queue, queue], queuesAsked: 4 });
    expect(notes).to.deep.equal([
      'The target grants 2 of 4 I/O queues: raise what it grants (maxQueues of its port), or ask for no more (--nr-io-queues 2).',
    ]);
  });

  it('bench counts in what fio counts in', () => {
    const flags = {
      nsid: 1,
      rw: 'randread',
      rwmixread: 50,
      bs: 4096,
      qd: 32,
      warmup: 0,
      buffers: 1 << 28,
    } as const;
    expect(jobOf(flags)).to.include({
      runtimeMs: 5000,
      commandCount: 0n,
      verify: false,
      bufferBytes: 268_435_456,
    });
    expect(jobOf({ ...flags, number: 10 })).to.include({ runtimeMs: 0, commandCount: 10n });
    expect(jobOf({ ...flags, number: 10, runtime: 1000 })).to.include({ runtimeMs: 1000 });
    expect(() => jobOf({ ...flags, runtime: 0 })).to.throw(CliError, '--runtime or --number');
  });
});

describe('exit codes', () => {
  const cases: [Error, number][] = [
    [new ConnectError('CONNECT_NO_ANSWER', 'x'), 3],
    [new NvmeStatusError(2, 'Read'), 4],
    [new DisconnectedError('x'), 6],
    [new CommandTimeoutError('Read', 1, Promise.resolve()), 6],
    [new ArgumentError('x'), 2],
    [new NvmeofError('CONFIG_INVALID', 'x'), 2],
    [new NvmeofError('SIZE_INVALID', 'x'), 2],
    [new NvmeofError('DEVICE_OPEN', 'x'), 1],
    [new ProviderUnavailableError('verbs', undefined), 2],
    [new CliError(5, 'x'), 5],
    [new Error('x'), 1],
  ];
  for (const [error, code] of cases) {
    it(`${error.name} ${(error as { code?: string }).code ?? ''}`, () => {
      expect(describeFailure(error).exitCode).to.equal(code);
    });
  }

  it('an error of the system is found through its causes, with what to do', () => {
    const cause = Object.assign(new Error('open'), { code: 'EACCES' });
    const error = new NvmeofError('NAMESPACE_OPEN', 'namespace 1: open', { cause });
    expect(describeFailure(error).remedy).to.contain('a user who may');
  });

  it('an address in use has its holder and the remedy in its message, once', () => {
    const cause = Object.assign(new Error('held by process 7: stop it'), { code: 'EADDRINUSE' });
    const error = new NvmeofError('DEVICE_OPEN', `cannot open: ${cause.message}`, { cause });
    expect(describeFailure(error)).to.deep.equal({
      exitCode: 1,
      message: 'cannot open: held by process 7: stop it',
      remedy: undefined,
    });
  });

  it('wrong usage is 2, help and version are 0', async () => {
    expect((await run(['bogus'])).code).to.equal(2);
    expect((await run([])).code).to.equal(2);
    expect((await run(['discover'])).code).to.equal(2);
    expect((await run(['discover', 'localhost'])).code).to.equal(2);
    expect((await run(['bench', '127.0.0.1', 'nqn.x', '--rw', 'sideways'])).code).to.equal(2);
    expect((await run(['bench', '127.0.0.1', 'nqn.x', '--qd', '0'])).code).to.equal(2);
    expect((await run(['read', '127.0.0.1', 'nqn.x', '--length', '1x'])).code).to.equal(2);
    expect((await run(['--help'])).code).to.equal(0);
    const version = await run(['--version']);
    expect(version).to.include({ code: 0 });
    expect(version.stdout).to.match(/^\d+\.\d+\.\d+\n$/);
  });

  it('attach wants to know for whom', async () => {
    const { code, stderr } = await run(['attach', '127.0.0.1', 'nqn.x']);
    expect(code).to.equal(2);
    expect(stderr).to.contain('--nbd SOCKET');
    expect(nbdCommands("/tmp/a b'c", 4096, 2)).to.deep.equal([
      "nbd-client -unix '/tmp/a b'\\''c' /dev/nbd0 -block-size 4096 -connections 2",
      "qemu-img info 'nbd+unix:///?socket=/tmp/a%20b'\\''c'",
      "fio --name=nbd --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/a%20b'\\''c' --rw=randread --bs=4k --iodepth=32",
    ]);
  });

  it('an error is one sentence; its origin is shown when asked for', async () => {
    const args = ['info', '127.0.0.1', 'not-an-nqn'];
    const plain = await run(args);
    expect(plain.code).to.equal(2);
    expect(plain.stderr).to.match(/^nvmeof: subsystem NQN "not-an-nqn" .*\n$/);
    const verbose = await run([...args, '--verbose']);
    expect(verbose.stderr).to.match(/\n\s+at /);
  });
});

describe('help', () => {
  it('lists every sub-command and exit code', async () => {
    const { stdout } = await run(['--help']);
    for (const { name } of SUB_COMMANDS) expect(stdout).to.contain(`\n  ${name} `);
    for (let code = 0; code <= 6; code += 1) expect(stdout).to.contain(`\n  ${code}  `);
  });

  for (const { name } of SUB_COMMANDS) {
    it(`${name} has a description, examples and --json`, async () => {
      const { code, stdout } = await run([name, '--help']);
      expect(code).to.equal(0);
      expect(stdout).to.contain('Examples:').and.to.contain(`$ nvmeof ${name}`);
      if (name !== 'target') expect(stdout).to.match(/--json/);
      expect(new Command(name).name()).to.equal(name);
    });
  }
});

describe('target', () => {
  it('the short form becomes a configuration', async () => {
    const config = await targetConfig({
      export: ['memory:1MiB,bs=4096', '/x/disk.img,ro,serial=S1'],
      nqn: 'nqn.2024-01.org.example:disk',
      listen: [
        { address: '::1', port: 4421 },
        { address: '192.0.2.7', port: 4420 },
      ],
      allow: ['nqn.2024-01.org.example:host'],
      cores: [0, 1],
      mtu: 1024,
      icrc: 'full',
      socketBuffer: 65536,
      pcap: 'x.pcap',
      log: 'info',
    });
    expect(config).to.include({
      mtu: 1024,
      icrc: 'full',
      socketBufferBytes: 65536,
      pcap: 'x.pcap',
    });
    expect(config.cores).to.deep.equal([0, 1]);
    const [subsystem] = config.subsystems;
    expect(subsystem?.serial).to.equal('S1');
    expect(subsystem?.hosts).to.deep.equal(['nqn.2024-01.org.example:host']);
    expect(
      subsystem?.namespaces.map(({ path, memory, blockSize, readOnly }) => [
        path,
        memory,
        blockSize,
        readOnly,
      ]),
    ).to.deep.equal([
      [undefined, 1n << 20n, 4096, false],
      ['/x/disk.img', undefined, 512, true],
    ]);
    expect(connectCommands(config)).to.deep.equal([
      'nvmeof info [::1]:4421 nqn.2024-01.org.example:disk',
      'nvme connect -t rdma -a ::1 -s 4421 -n nqn.2024-01.org.example:disk',
      'nvmeof info 192.0.2.7 nqn.2024-01.org.example:disk',
      'nvme connect -t rdma -a 192.0.2.7 -s 4420 -n nqn.2024-01.org.example:disk',
    ]);
  });

  it('has defaults a laptop can use', async () => {
    const { ports, subsystems } = await targetConfig({ export: ['null:1GiB'], log: 'info' });
    expect(ports[0]).to.include({ address: '127.0.0.1', port: 4420 });
    expect(subsystems[0]?.nqn).to.equal(defaultNqn());
    expect(defaultNqn('My Host!.lan')).to.equal('nqn.2026-11.io.nvmeof:my-host-lan');
  });

  it('says what is wrong with the command line or the file', async () => {
    const wrong: [string[], RegExp][] = [
      [[], /nothing to export/],
      [['--export', 'memory:1001'], /block size/],
      [['--export', 'memory:1MiB,colour=red'], /unknown option "colour=red"/],
      [['--export', 'memory:1MiB', '--nqn', 'x'], /NQN/],
      [['--export', 'memory:1MiB', '--mtu', '1500'], /mtu/],
      [['--export', 'null:1M,serial=A', '--export', 'null:1M,serial=B'], /serial numbers A and B/],
      [
        ['--export', 'memory:1MiB', '--cores', '0,1', '--listen', '127.0.0.1@1,2'],
        /ports\[0\]\.cores\[1\]: core 2 is none of the target's cores 0, 1; name one of these/,
      ],
      [['--export', 'memory:1MiB', '--listen', '127.0.0.1@x'], /Write cores as 0,1 or 0-3/],
      [['--config', '/nonexistent.json'], /nonexistent\.json/],
      [['--config', 'x.json', '--export', 'null:1M'], /--config goes without/],
      [['--config', 'x.json', '--allow', 'nqn.x'], /--config goes without/],
    ];
    for (const [args, text] of wrong) {
      const { code, stderr } = await run(['target', ...args]);
      expect(stderr, args.join(' ')).to.match(text);
      expect(code, args.join(' ')).to.equal(2);
    }
  });

  it('reads a configuration file, and flags go on top', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-config-'));
    const path = join(folder, 'target.json');
    const config = {
      ports: [{ address: '127.0.0.1' }],
      subsystems: [{ nqn: 'nqn.2024-01.org.example:a', namespaces: [{ memory: '1MiB' }] }],
      cores: [0],
    };
    writeFileSync(path, JSON.stringify(config));
    try {
      const loaded = await targetConfig({ config: path, cores: [3], log: 'info' });
      expect(loaded.cores).to.deep.equal([3]);
      expect(loaded.subsystems[0]?.namespaces[0]?.memory).to.equal(1n << 20n);
      // What ports may name is known when the flags are there, too.
      const ports = [{ address: '127.0.0.1', cores: [3] }];
      writeFileSync(path, JSON.stringify({ ...config, ports }));
      const named = await targetConfig({ config: path, cores: [2, 3], log: 'info' });
      expect(named.ports[0]?.cores).to.deep.equal([3]);
      const without = await run(['target', '--config', path]);
      expect(without.code).to.equal(2);
      expect(without.stderr).to.contain(
        `ports[0].cores[0]: core 3 is none of the target's cores 0; name one of these`,
      );
      writeFileSync(path, '[]');
      expect((await run(['target', '--config', path])).code).to.equal(2);
      writeFileSync(path, JSON.stringify({ ...config, ports: [{ address: 'x' }] }));
      const { code, stderr } = await run(['target', '--config', path]);
      expect(code).to.equal(2);
      expect(stderr).to.contain('ports[0].address');
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  it('a log record is one line a person can read', () => {
    const record = {
      name: 'nvmeof',
      hostname: 'h',
      pid: 1,
      level: 40,
      peer: '::1',
      count: 3,
      reason: 'no way',
      msg: 'refused',
      time: '2026-11-29T19:25:44.809Z',
      v: 0,
    };
    expect(formatRecord(JSON.stringify(record))).to.equal(
      '19:25:44.809 WARN  refused peer=::1 count=3 reason="no way"',
    );
  });
});

describe('JSON', () => {
  it('keeps 64-bit numbers exact', () => {
    expect(JSON.parse(toJson({ a: 5n, b: (1n << 63n) + 1n }))).to.deep.equal({
      a: 5,
      b: '9223372036854775809',
    });
  });
});
