/** `nvmeof fio`: what its words mean, and the job files that come along. */
import { expect } from 'chai';
import { readFileSync } from 'node:fs';
import { fioRun } from '../../../tools/cli/commands/fio.ts';
import type { FioFlags } from '../../../tools/cli/commands/fio.ts';
import { CliError } from '../../../tools/cli/context.ts';
import { defaultOptions, fileOption, findJob, shippedJobs } from '../../../tools/cli/fio-run.ts';
import { run } from './support.ts';

const flags = (more: Partial<FioFlags> = {}): FioFlags => ({ nsid: 1, ...more });

describe('nvmeof fio', () => {
  it('takes address, NQN and job, or a job alone', () => {
    expect(fioRun(['192.0.2.1', 'nqn.x', 'job', '--bs=8k'], flags())).to.deep.equal({
      place: { kind: 'target', address: '192.0.2.1', nqn: 'nqn.x' },
      job: 'job',
      options: ['--bs=8k'],
    });
    for (const kind of ['socket', 'device'] as const) {
      expect(fioRun(['job', '--bs=8k', '-x'], flags({ [kind]: '/a' }))).to.deep.equal({
        place: { kind, path: '/a' },
        job: 'job',
        options: ['--bs=8k', '-x'],
      });
    }
  });

  it('says what is missing or too much', async () => {
    expect(() => fioRun(['192.0.2.1', 'nqn.x'], flags())).to.throw(CliError, 'a job is missing');
    expect(() => fioRun([], flags({ socket: '/a' }))).to.throw(CliError, 'a job is missing');
    expect(() => fioRun(['job'], flags({ socket: '/a', device: '/b' }))).to.throw(
      CliError,
      'exclude',
    );
    const { code, stderr } = await run(['fio', '--socket', '/tmp/none', 'bogus']);
    expect(code).to.equal(2);
    expect(stderr).to.match(/no job file bogus\n.*randread-4k-qd32/);
    const address = await run(['fio', 'localhost', 'nqn.x', 'verify']);
    expect(address.code).to.not.equal(0);
  });

  it('names a file to fio, whatever is in its path', () => {
    expect(fileOption('/tmp/a b')).to.equal('--filename=/tmp/a b');
    expect(fileOption('/tmp/a:b')).to.equal('--filename=/tmp/a\\:b');
    expect(defaultOptions('io_uring', '/dev/x').slice(0, 2)).to.deep.equal([
      '--ioengine=io_uring',
      '--filename=/dev/x',
    ]);
  });

  it('has job files that leave engine, file and length of the run to the command line', () => {
    expect(shippedJobs()).to.include.members(['randread-4k-qd1', 'randread-4k-qd128', 'verify']);
    for (const name of shippedJobs()) {
      const text = readFileSync(findJob(name), 'utf8');
      expect(text, name).to.contain(`[${name}]`);
      expect(text, name).to.not.match(/^(ioengine|filename|runtime|size)=/m);
      if (/^rw=.*write/m.test(text)) expect(text, name).to.contain('Destroys data');
    }
  });
});
