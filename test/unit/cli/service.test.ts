/** The systemd units: that their command lines are ones that the commands take, and what systemd says of them. */
import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { ServiceManager } from '../../../tools/cli/service-manager.ts';
import { run } from './support.ts';

const unit = (name: string): string =>
  fileURLToPath(new URL(`../../../tools/service/${name}`, import.meta.url));

interface Service {
  readonly name: string;
  /** What systemd looks at: of a template, an instance. */
  readonly instance: string;
  /** What is configured; the last word of the command line is an option without its value. */
  readonly configured: Readonly<Record<string, string>>;
}

const SERVICES: readonly Service[] = [
  {
    name: 'nvmeof-attach@.service',
    instance: 'nvmeof-attach@disk.service',
    configured: {
      '${ADDRESS}': '192.0.2.1',
      '${NQN}': 'nqn.2024-01.com.example:disks',
      $OPTIONS: '--nsid',
      '%t/nvmeof/%i/nbd.sock': '/run/nvmeof/disk/nbd.sock',
    },
  },
  {
    name: 'nvmeof-target.service',
    instance: 'nvmeof-target.service',
    configured: { $OPTIONS: '--mtu', '%t/nvmeof/target.sock': '/run/nvmeof/target.sock' },
  },
];

/** What systemd would start, with an option too many at its end. */
function commandLine({ name, configured }: Service): string[] {
  const [, line = ''] = /^ExecStart=(.*)$/m.exec(readFileSync(unit(name), 'utf8')) ?? [];
  return line.split(' ').map((word) => configured[word] ?? word);
}

for (const service of SERVICES) {
  describe(service.name, () => {
    it('starts what the command takes', async () => {
      const [env, name, ...args] = commandLine(service);
      expect([env, name]).to.deep.equal(['/usr/bin/env', 'nvmeof']);
      const last = args.at(-1) ?? '';
      expect(Object.values(service.configured)).to.include(last);
      // Everything before it was taken: what is missing is its value.
      const { code, stderr } = await run(args);
      expect(stderr).to.match(new RegExp(`option '${last} <\\w+>' argument missing`));
      expect(code).to.equal(2);
    });

    it('is a unit that systemd takes', function () {
      if (spawnSync('systemd-analyze', ['--version']).error) this.skip();
      const folder = mkdtempSync(join(tmpdir(), 'nvmeof-unit-'));
      try {
        const instance = join(folder, service.instance);
        copyFileSync(unit(service.name), join(folder, service.name));
        copyFileSync(unit(service.name), instance);
        // What it does not know it ignores, with a line that names the file.
        const { status, stderr } = spawnSync('systemd-analyze', ['verify', '--man=no', instance], {
          encoding: 'utf8',
        });
        expect(stderr.split('\n').filter((line) => line.includes(folder))).to.deep.equal([]);
        expect(status).to.equal(0);
      } finally {
        rmSync(folder, { recursive: true });
      }
    });
  });
}

describe('the service manager', () => {
  const told: string[] = [];
  const warnings: object[] = [];
  const ignore = (): void => undefined;
  const log = {
    debug: ignore,
    info: ignore,
    error: ignore,
    warn: (fields: object) => void warnings.push(fields),
  };
  afterEach(() => {
    told.length = 0;
    warnings.length = 0;
  });

  it('hears of each state', () => {
    const manager = new ServiceManager(log, '/run/notify', (socket, state) => {
      told.push(`${socket} ${state}`);
    });
    manager.ready('serving');
    manager.reloading();
    manager.stopping();
    expect(told[0]).to.equal('/run/notify READY=1\nSTATUS=serving');
    expect(told[1]).to.match(/^\/run\/notify RELOADING=1\nMONOTONIC_USEC=\d+\nSTATUS=/);
    expect(told[2]).to.equal('/run/notify STOPPING=1\nSTATUS=finishing I/O');
    manager.ready(`two\nlines, ${'x'.repeat(10_000)}`);
    expect(told[3]).to.match(/^\/run\/notify READY=1\nSTATUS=two; lines, x+$/);
    expect(told[3]?.length).to.be.below(600);
    const [, microseconds = '0'] = /USEC=(\d+)/.exec(told[1] ?? '') ?? [];
    const now = Number(process.hrtime.bigint() / 1000n);
    expect(Number(microseconds)).to.be.within(now - 5_000_000, now);
  });

  it('that is not there is not told, and one that does not listen is no failure', () => {
    for (const socket of ['', undefined]) {
      new ServiceManager(log, socket, () => told.push('told')).ready('x');
    }
    expect([told, warnings]).to.deep.equal([[], []]);
    new ServiceManager(log, '/nonexistent/notify').ready('x');
    expect(warnings.length).to.equal(1);
  });
});
