/** Counters of running commands: a target asked by signal, a bench in its JSON. */
import { expect } from 'chai';
import { loopbackAddress, nvmeof, Process } from '../support/processes.ts';

const NQN = 'nqn.2026-11.io.nvmeof:counters';

interface LogRecord {
  readonly msg: string;
  readonly [counter: string]: unknown;
}

function records(text: string): LogRecord[] {
  return text
    .split('\n')
    .filter((line) => line.startsWith('{"name":"nvmeof"'))
    .map((line) => JSON.parse(line) as LogRecord);
}

describe('counters', function () {
  this.timeout(60_000);

  it('are logged by a target on SIGUSR1, and printed by bench', async () => {
    const address = loopbackAddress();
    const args = ['target', '--export', 'memory:8MiB', '--nqn', NQN, '--listen', address];
    const target = new Process(args);
    try {
      await target.waitFor(/nvme connect -t rdma/);
      const bench = await nvmeof(['bench', address, NQN, '--number', '10', '--json']);
      expect(bench.code, bench.stderr).to.equal(0);
      const { nvmeof: own } = JSON.parse(bench.stdout) as {
        readonly nvmeof: { readonly counters: Readonly<Record<string, number>> };
      };
      expect(own.counters['host.commands']).to.be.greaterThan(9);
      await target.waitFor(/host gone/);
      target.child.kill('SIGUSR1');
      await target.waitFor(/"msg":"counters"/);
    } finally {
      await target.stop();
    }
    const { code, stderr } = await target.ended();
    expect(code, stderr).to.equal(0);
    const counted = records(stderr).filter(({ msg }) => msg === 'counters');
    expect(counted).to.have.length(1);
    expect(counted[0]?.['target.commands.read']).to.equal(10);
  });
});
