/**
 * The repository's own rules, those that no other tool checks: lengths of files, leftovers, reasons for disabled lint
 * rules, the layers of the C++ sources, and a comment at the top of every file. Prints what is wrong and where; exit
 * code 1 when anything is. The rules look at file names and text alone.
 */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, extname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

interface Source {
  readonly path: string;
  readonly lines: readonly string[];
}

/** Returns the findings of one file: line number and what to do. */
type Rule = (source: Source) => readonly (readonly [line: number, what: string])[];

const LINES_MAX = 500;
const CODE = new Set(['.ts', '.js', '.cjs', '.cc', '.h', '.sh']);
/** Their cases say themselves what they are, and may be many. */
const TESTS = /^native\/test\/|\.test\.ts$/;
const NOT_OURS = /^(tools\/limits\/|native\/wire\/generated\/|test\/fixtures\/)/;

/**
 * What each C++ folder may include, by the start of the name; its own folder goes without saying. Tests may include
 * everything, and are included by nobody.
 */
const LAYERS: readonly (readonly [folder: string, allowed: readonly string[]])[] = [
  ['native/reactor/', ['reactor/']],
  ['native/rdma/soft/', ['reactor/', 'rdma/']],
  ['native/rdma/verbs/', ['reactor/', 'rdma/verbs/', 'rdma/provider.h', 'rdma/connection_id.h']],
  // The one file that knows the providers by name: it picks one.
  ['native/rdma/open_device.cc', ['reactor/', 'rdma/']],
  [
    'native/rdma/',
    ['reactor/', 'rdma/provider.h', 'rdma/connection_id.h', 'rdma/arena.h', 'rdma/fault_rules.h'],
  ],
  ['native/block/', ['reactor/', 'block/']],
  ['native/nvmf/', ['reactor/', 'block/', 'nvmf/', 'wire/', 'rdma/provider.h', 'rdma/arena.h']],
  [
    'native/attach/',
    ['reactor/', 'nvmf/', 'attach/', 'client/ring_layout.h', 'rdma/provider.h', 'rdma/arena.h'],
  ],
  [
    'native/addon/',
    [
      'reactor/',
      'block/',
      'nvmf/',
      'attach/',
      'wire/',
      'addon/',
      'rdma/provider.h',
      'rdma/arena.h',
      'rdma/counter_totals.h',
    ],
  ],
];

const isCpp = (path: string): boolean => /\.(cc|h)$/.test(path);

function eachLine(
  source: Source,
  find: (line: string, index: number) => string | undefined,
): (readonly [number, string])[] {
  return source.lines.flatMap((line, index) => {
    const what = find(line, index);
    return what === undefined ? [] : [[index + 1, what] as const];
  });
}

const RULES: Readonly<Record<string, Rule>> = {
  length: ({ path, lines }) =>
    lines.length > LINES_MAX && !TESTS.test(path)
      ? [[LINES_MAX, `${lines.length} lines; split the file by subject before ${LINES_MAX}`]]
      : [],

  leftovers: (source) =>
    eachLine(source, (line) =>
      /\b(TO[D]O|FIX[M]E|XX[X])\b/.test(line)
        ? 'do it, or file an issue and remove this'
        : undefined,
    ),

  // The reason stands behind two dashes on the same line: eslint's own form.
  'lint reasons': (source) =>
    eachLine(source, (line) =>
      /eslint-dis[a]ble/.test(line) && !/eslint-dis[a]ble[^\n]*\s--\s+\S/.test(line)
        ? 'say why, on the same line: -- reason'
        : undefined,
    ),

  'opening comment': ({ path, lines }) => {
    const first = lines[0]?.startsWith('#!') ? lines[1] : lines[0];
    // A .cc may leave it to its header.
    return TESTS.test(path) ||
      path.endsWith('.cc') ||
      (path.endsWith('.sh') ? /^#/ : /^(\/\/|\/\*)/).test(first ?? '')
      ? []
      : [[1, `${path} opens without a comment that says what it is`]];
  },

  layers: (source) => {
    const layer = LAYERS.find(([folder]) => source.path.startsWith(folder));
    if (!isCpp(source.path) || !layer) return [];
    return eachLine(source, (line) => {
      const included = /^\s*#\s*include\s+"([^"]+)"/.exec(line)?.[1];
      if (included === undefined || layer[1].some((start) => included.startsWith(start))) return;
      return `${layer[0]} may include ${layer[1].join(', ')}; not ${included}`;
    });
  },

  // Sources name a header by its path from native/, so that the rule above sees all of them.
  'include paths': (source) =>
    isCpp(source.path) && source.path.startsWith('native/')
      ? eachLine(source, (line) =>
          /^\s*#\s*include\s+"\.{1,2}\//.test(line) ? 'name headers from native/ on' : undefined,
        )
      : [],

  'pragma once': ({ path, lines }) =>
    path.startsWith('native/') && path.endsWith('.h') && !lines.includes('#pragma once')
      ? [[1, 'headers say #pragma once']]
      : [],
};

function sources(root: string): Source[] {
  const listed = execFileSync(
    'git',
    ['ls-files', '-z', '--cached', '--others', '--exclude-standard'],
    {
      cwd: root,
      encoding: 'utf8',
    },
  );
  return listed
    .split('\0')
    .filter((path) => CODE.has(extname(path)) && !NOT_OURS.test(path))
    .flatMap((path) => {
      try {
        return [{ path, lines: readFileSync(join(root, path), 'utf8').trimEnd().split('\n') }];
      } catch {
        return []; // deleted, but still in the index
      }
    });
}

function main(): void {
  let found = 0;
  for (const source of sources(dirname(dirname(fileURLToPath(import.meta.url))))) {
    for (const [rule, check] of Object.entries(RULES)) {
      for (const [line, what] of check(source)) {
        console.error(`${source.path}:${line}: ${rule}: ${what}`);
        found += 1;
      }
    }
  }
  if (found > 0) {
    console.error(`tidy: ${found} finding${found === 1 ? '' : 's'}`);
    process.exitCode = 1;
  }
}

main();
