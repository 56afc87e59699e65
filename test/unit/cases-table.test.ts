/** docs/cases.md: every test that it names exists under that title. */
import { expect } from 'chai';
import { existsSync, readFileSync } from 'node:fs';

const repository = new URL('../../', import.meta.url);
const ROWS_MIN = 50;

interface Named {
  readonly file: string;
  readonly title: string | undefined;
}

/** The last cell of each row: files, each followed by what it shows. */
function rows(): Named[][] {
  const text = readFileSync(new URL('docs/cases.md', repository), 'utf8');
  return text
    .split('\n')
    .filter((line) => line.startsWith('|') && !/^\| (-+|case|report) /.test(line))
    .map((line) => {
      const cell = line.split('|').at(-2) ?? '';
      let file = '';
      return [...cell.matchAll(/`([^`]+)`|"([^"]+)"/g)].map(([, path, title]) => {
        if (path !== undefined) file = path;
        return { file, title };
      });
    });
}

function textOf(file: string): string {
  const path = file.includes('.') ? file : `test/${file}.test.ts`;
  const url = new URL(path, repository);
  expect(existsSync(url), path).to.be.true;
  return readFileSync(url, 'utf8');
}

describe('docs/cases.md', () => {
  it('names tests that exist', () => {
    const all = rows();
    expect(all.length).to.be.greaterThan(ROWS_MIN);
    for (const named of all) {
      expect(named).to.not.be.empty;
      for (const { file, title } of named) {
        const text = textOf(file);
        if (title !== undefined) expect(text.includes(title), `${file}: "${title}"`).to.be.true;
      }
    }
  });
});
