/**
 * Writes what is derived from the methods of the control socket: docs/control.openrpc.json, and the tables of docs/control.md between
 * their marks. `npm run gen:control`; a test fails when the files are not what comes out (`--check` says the same).
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { format } from 'prettier';
import type { Options } from 'prettier';
import { RPC_CODE_MEANINGS } from '../target/control/errors.ts';
import type { Method } from '../target/control/method.ts';
import { METHODS } from '../target/control/methods.ts';
import { discoveryDocument, jsonSchema } from '../target/control/openrpc.ts';
import { version } from './cli/version.ts';

const docs = (name: string): string => fileURLToPath(new URL(`../docs/${name}`, import.meta.url));
const SCHEMA_FILE = docs('control.openrpc.json');
const GUIDE_FILE = docs('control.md');

/** As `npm run format` would leave them. */
const STYLE: Options = { printWidth: 100, singleQuote: true };

interface Written {
  readonly path: string;
  readonly text: string;
}

function parameters(method: Method): string {
  const { properties = {}, required = [] } = jsonSchema(method.params) as {
    readonly properties?: object;
    readonly required?: readonly string[];
  };
  const names = Object.keys(properties).map((name) =>
    required.includes(name) ? `\`${name}\`` : `\`${name}\`?`,
  );
  return names.length === 0 ? '-' : names.join(', ');
}

function methodTable(): string {
  const rows = METHODS.map(
    (one) => `| \`${one.name}\` | ${parameters(one)} | ${one.summary.replaceAll('|', '\\|')} |`,
  );
  return ['| method | parameters | what it does |', '| --- | --- | --- |', ...rows].join('\n');
}

function codeTable(): string {
  const rows = RPC_CODE_MEANINGS.map(([code, meaning]) => `| ${code} | ${meaning} |`);
  return ['| code | meaning |', '| --- | --- |', ...rows].join('\n');
}

function between(text: string, mark: string, content: string): string {
  const [begin, end] = [`<!-- ${mark}: generated -->`, `<!-- /${mark} -->`];
  const [from, to] = [text.indexOf(begin), text.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`docs/control.md has no ${begin} … ${end}`);
  return `${text.slice(0, from + begin.length)}\n\n${content}\n\n${text.slice(to)}`;
}

/** The files as they should be. */
export async function controlFiles(): Promise<Written[]> {
  const schema = JSON.stringify(discoveryDocument(METHODS, version()));
  const guide = between(
    between(readFileSync(GUIDE_FILE, 'utf8'), 'methods', methodTable()),
    'codes',
    codeTable(),
  );
  return [
    { path: SCHEMA_FILE, text: await format(schema, { ...STYLE, parser: 'json' }) },
    { path: GUIDE_FILE, text: await format(guide, { ...STYLE, parser: 'markdown' }) },
  ];
}

/** Those that are not what they should be. */
export async function staleControlFiles(): Promise<string[]> {
  const files = await controlFiles();
  return files.flatMap(({ path, text }) => (readFileSync(path, 'utf8') === text ? [] : [path]));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv.includes('--check')) {
    const stale = await staleControlFiles();
    for (const path of stale) console.error(`${path} is stale: npm run gen:control`);
    process.exitCode = stale.length === 0 ? 0 : 1;
  } else {
    for (const { path, text } of await controlFiles()) writeFileSync(path, text);
  }
}
