import { expect } from 'chai';
import { interopTable, type Result } from '../../kernel/support/interop-table.ts';

const RESULT: Result = {
  side: 'kernel host → our target',
  scenario: 'reads',
  kernel: '6.12',
  release: '6.12.1+deb12',
  driver: 'rxe',
  family: 'IPv4',
  mtu: 4096,
  passed: true,
  seconds: 12.4,
  date: '2026-01-02',
};

describe('interop table', () => {
  const table = interopTable([
    RESULT,
    { ...RESULT, family: 'IPv6', mtu: 1024, passed: false },
    { ...RESULT, scenario: 'writes' },
    { ...RESULT, side: 'our initiator → kernel target', kernel: '6.1', release: '6.1.9' },
  ]);
  const lines = table.split('\n');

  it('has a table for each side, peers across, scenarios down', () => {
    const begin = lines.indexOf('## kernel host → our target');
    expect(lines.slice(begin + 2, begin + 6)).to.deep.equal([
      '| scenario | 6.12 rxe<br>IPv4<br>MTU 4096 | 6.12 rxe<br>IPv6<br>MTU 1024 |',
      '| -------- | ---------------------------- | ---------------------------- |',
      '| reads    | ok 2026-01-02, 12 s          | FAILED 2026-01-02, 12 s      |',
      '| writes   | ok 2026-01-02, 12 s          |                              |',
    ]);
    expect(lines).to.include('## our initiator → kernel target');
  });

  it('counts, and names the kernels', () => {
    expect(table).to.include('3 of 4 passed');
    expect(table).to.include('6.1 is 6.1.9; 6.12 is 6.12.1+deb12');
  });
});
