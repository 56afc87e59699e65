/**
 * `tools/demo/demo.sh` (npm run demo) as a newcomer runs it: it passes and shows its table, also on a file that is given; and
 * its comparison is one that can fail.
 */
import { expect } from 'chai';
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { readFileSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { randomBytes } from '../support/in-process.ts';
import { loopbackAddress, temporaryFolder } from '../support/processes.ts';
import type { Finished } from '../support/processes.ts';

const SCRIPT = fileURLToPath(new URL('../../tools/demo/demo.sh', import.meta.url));
const ROWS = [
  '4 KiB random read, queue depth 1',
  '4 KiB random read, queue depth 32',
  '4 KiB random write, queue depth 1',
  '4 KiB random write, queue depth 32',
];

/** Its temporary files go into `folder`, so that a test sees what is left of them. */
async function demo(folder: string, args: readonly string[]): Promise<Omit<Finished, 'signal'>> {
  const options = ['--address', loopbackAddress(), '--seconds', '1', ...args];
  const child = spawn('bash', [SCRIPT, ...options], {
    env: { ...process.env, TMPDIR: folder },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let stdout = '';
  let stderr = '';
  child.stdout.on('data', (chunk: Buffer) => (stdout += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (stderr += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  return { code, stdout, stderr };
}

function expectPassed({ code, stdout, stderr }: Omit<Finished, 'signal'>): void {
  expect(code, stdout + stderr).to.equal(0);
  expect(stdout).to.include('The demo has passed.').and.not.include('FAILED');
  for (const name of ROWS) expect(stdout).to.match(new RegExp(`${name} … [\\d.,k]+ IOPS`));
  expect(stdout).to.include('IOPS').and.include('target CPU').and.include('p99');
}

describe('the demo', function () {
  this.timeout(180_000);
  let folder: ReturnType<typeof temporaryFolder>;

  beforeEach(() => {
    folder = temporaryFolder();
  });
  afterEach(() => {
    folder.remove();
  });

  it('passes on an image of its own, shows the table and cleans up', async () => {
    const end = await demo(folder.path, []);
    expectPassed(end);
    expect(end.stdout).to.include('check the file system of the copy … clean');
    expect(readdirSync(folder.path).filter((name) => name.startsWith('nvmeof-'))).to.deep.equal([]);
  });

  it('passes on a file that is given, and leaves it as it was', async () => {
    const path = join(folder.path, 'an image, with a comma.img');
    const content = randomBytes(5 << 20);
    writeFileSync(path, content);
    const end = await demo(folder.path, [path]);
    expectPassed(end);
    expect(end.stdout).to.include(createHash('sha256').update(content).digest('hex').slice(0, 16));
    expect(end.stdout).to.include(path).and.not.include('file system of the copy');
    expect(readFileSync(path).equals(content)).to.be.true;
  });

  it('--corrupt: fails, names the comparison, measures nothing', async () => {
    const { code, stdout, stderr } = await demo(folder.path, ['--corrupt']);
    expect(code, stdout + stderr).to.equal(1);
    expect(stdout).to.include('self-test: flip a byte of the image … ok');
    expect(stdout).to.include('compare the copy with the image … FAILED');
    expect(stderr).to.match(
      /The demo failed at: compare the copy with the image: what came over the network differs/,
    );
    expect(stdout).not.to.include('IOPS').and.not.include('has passed');
    expect(readdirSync(folder.path).filter((name) => name.startsWith('nvmeof-'))).to.deep.equal([]);
  });
});
