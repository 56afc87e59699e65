/** The systemd unit of `nvmeof attach`: that its command line is one the command takes, and what systemd says of it. */
import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { copyFileSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { run } from './support.ts';

const UNIT = fileURLToPath(
  new URL('../../../tools/service/nvmeof-attach@.service', import.meta.url),
);
const CONFIGURED: Readonly<Record<string, string>> = {
  '${ADDRESS}': '192.0.2.1',
  '${NQN}': 'nqn.2024-01.com.example:disks',
  $OPTIONS: '--nsid',
  '%t/nvmeof/%i/nbd.sock': '/run/nvmeof/disk/nbd.sock',
};

/** What systemd would start, with an option too many at its end. */
function commandLine(): string[] {
  const [, line = ''] = /^ExecStart=(.*)$/m.exec(readFileSync(UNIT, 'utf8')) ?? [];
  return line.split(' ').map((word) => CONFIGURED[word] ?? word);
}

describe('the service of attach', () => {
  it('starts what the command takes', async () => {
    const [env, name, ...args] = commandLine();
    expect([env, name]).to.deep.equal(['/usr/bin/env', 'nvmeof']);
    expect(args.at(-1)).to.equal('--nsid');
    // Everything before it was taken: what is missing is its value.
    const { code, stderr } = await run(args);
    expect(stderr).to.contain("option '--nsid <n>' argument missing");
    expect(code).to.equal(2);
  });

  it('is a unit that systemd takes', function () {
    if (spawnSync('systemd-analyze', ['--version']).error) this.skip();
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-unit-'));
    try {
      const instance = join(folder, 'nvmeof-attach@disk.service');
      copyFileSync(UNIT, join(folder, 'nvmeof-attach@.service'));
      copyFileSync(UNIT, instance);
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
