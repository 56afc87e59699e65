/**
 * Writes what is derived from the methods of the control sockets, of a target and of attach: an OpenRPC document for each in docs/, and
 * the tables of docs/control.md and docs/attach.md between their marks. `npm run gen:control`; a test fails when the files are not what
 * comes out (`--check` says the same).
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { format } from 'prettier';
import type { Options } from 'prettier';
import { RPC_CODE_MEANINGS } from '../target/control/errors.ts';
import type { MethodDescription } from '../target/control/method.ts';
import { METHODS } from '../target/control/methods.ts';
import { discoveryDocument, jsonSchema } from '../target/control/openrpc.ts';
import { HOST_SIDE_METHODS } from './cli/host/methods.ts';
import { version } from './cli/version.ts';

const docs = (name: string): string => fileURLToPath(new URL(`../docs/${name}`, import.meta.url));

/** As `npm run format` would leave them. */
const STYLE: Options = { printWidth: 100, singleQuote: true };

interface Written {
  readonly path: string;
  readonly text: string;
}

function parameters(method: MethodDescription): string {
  const { properties = {}, required = [] } = jsonSchema(method.params) as {
    readonly properties?: object;
    readonly required?: readonly string[];
  };
  const names = Object.keys(properties).map((name) =>
    required.includes(name) ? `\`${name}\`` : `\`${name}\`?`,
  );
  return names.length === 0 ? '-' : names.join(', ');
}

function methodTable(methods: readonly MethodDescription[]): string {
  const rows = methods.map(
    (one) => `| \`${one.name}\` | ${parameters(one)} | ${one.summary.replaceAll('|', '\\|')} |`,
  );
  return ['| method | parameters | what it does |', '| --- | --- | --- |', ...rows].join('\n');
}

function codeTable(): string {
  const rows = RPC_CODE_MEANINGS.map(([code, meaning]) => `| ${code} | ${meaning} |`);
  return ['| code | meaning |', '| --- | --- |', ...rows].join('\n');
}

function between(path: string, text: string, mark: string, content: string): string {
  const [begin, end] = [`<!-- ${mark}: generated -->`, `<!-- /${mark} -->`];
  const [from, to] = [text.indexOf(begin), text.indexOf(end)];
  if (from < 0 || to < from) throw new Error(`${path} has no ${begin} … ${end}`);
  return `${text.slice(0, from + begin.length)}\n\n${content}\n\n${text.slice(to)}`;
}

/** A guide with its tables, by their marks, and the document beside it. */
async function written(
  name: string,
  document: object,
  tables: Readonly<Record<string, string>>,
): Promise<Written[]> {
  const [guide, schema] = [docs(`${name}.md`), docs(`${name}.openrpc.json`)];
  const text = Object.entries(tables).reduce(
    (before, [mark, content]) => between(guide, before, mark, content),
    readFileSync(guide, 'utf8'),
  );
  return [
    { path: schema, text: await format(JSON.stringify(document), { ...STYLE, parser: 'json' }) },
    { path: guide, text: await format(text, { ...STYLE, parser: 'markdown' }) },
  ];
}

/** The files as they should be. */
export async function controlFiles(): Promise<Written[]> {
  const attach = discoveryDocument(HOST_SIDE_METHODS, version(), 'attach');
  return [
    ...(await written('control', discoveryDocument(METHODS, version()), {
      methods: methodTable(METHODS),
      codes: codeTable(),
    })),
    ...(await written('attach', attach, { methods: methodTable(HOST_SIDE_METHODS) })),
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
