/** docs/blktests.md: no test of blktests is left out, and every scenario that it names exists under that title. */
import { expect } from 'chai';
import { readFileSync } from 'node:fs';

const repository = new URL('../../', import.meta.url);
const table = new URL('docs/blktests.md', repository);

interface Row {
  readonly number: number;
  readonly ours: string;
}

function rows(): Row[] {
  return readFileSync(table, 'utf8')
    .split('\n')
    .flatMap((line) => {
      const cells = /^\| nvme\/(\d{3}) +\|(?:[^|]+)\| (.+?) +\|$/.exec(line);
      return cells ? [{ number: Number(cells[1]), ours: cells[2] ?? '' }] : [];
    });
}

/** Of `scenario(…)` and `it(…)`; what a template puts in may be anything. */
function titles(file: URL): RegExp[] {
  const calls = /\b(?:scenario|it)\(\s*(?:'((?:[^'\\]|\\.)*)'|`((?:[^`\\]|\\.)*)`)/g;
  return [...readFileSync(file, 'utf8').matchAll(calls)].map(([, plain, template]) => {
    const parts = plain === undefined ? (template ?? '').split(/\$\{[^}]*\}/) : [plain];
    const escaped = parts.map((part) => part.replaceAll(/[.*+?^${}()|[\]\\]/g, '\\$&'));
    return new RegExp(`^${escaped.join('.*')}$`);
  });
}

describe('docs/blktests.md', () => {
  it('has a row for each number, in order', () => {
    const numbers = rows().map(({ number }) => number);
    expect(numbers).to.have.length.of.at.least(70);
    expect(numbers).to.deep.equal(numbers.map((_, index) => index + 1));
  });

  it('names scenarios that exist, or says why there is none', () => {
    let named = 0;
    for (const { number, ours } of rows()) {
      const scenarios = [...ours.matchAll(/\]\((.+?\.test\.ts)\) "(.+?)"/g)];
      for (const [, path = '', title = ''] of scenarios) {
        named += 1;
        const known = titles(new URL(path, table)).some((pattern) => pattern.test(title));
        expect(known, `nvme/${number}: ${path} has no "${title}"`).to.be.true;
      }
      if (scenarios.length === 0) {
        expect(ours, `nvme/${number}`).to.match(/^(Later, with|Not ours:|Does not apply:) ./);
      }
    }
    expect(named).to.be.greaterThan(40);
  });
});
