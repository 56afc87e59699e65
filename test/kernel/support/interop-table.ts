/** docs/interop.md out of the results of scenarios: for each side a table, scenarios down, peers across. Pure. */

export interface Result {
  /** Who talks to whom. */
  readonly side: string;
  readonly scenario: string;
  /** 6.1 or 6.12; `release` is what `uname -r` said. */
  readonly kernel: string;
  readonly release: string;
  readonly driver: string;
  readonly family: string;
  readonly mtu: number;
  readonly passed: boolean;
  readonly seconds: number;
  /** YYYY-MM-DD */
  readonly date: string;
}

const HEAD = `# Interoperation with Linux

Written by \`npm run test:kernel -- --table\`, and by \`--all\` ([how](../test/kernel/README.md)); do not edit. Each cell says the date and
the time that the scenario took in guests under software emulation, or FAILED; an empty cell is a combination that has not been run.
`;

const peer = (result: Result): string =>
  `${result.kernel} ${result.driver}<br>${result.family}<br>MTU ${result.mtu}`;

const cell = (result: Result | undefined): string =>
  result
    ? `${result.passed ? 'ok' : 'FAILED'} ${result.date}, ${Math.round(result.seconds)} s`
    : '';

function table(results: readonly Result[]): string {
  const peers = unique(results.map(peer));
  const rows = unique(results.map(({ scenario }) => scenario)).map((scenario) => [
    scenario,
    ...peers.map((name) =>
      cell(results.find((result) => result.scenario === scenario && peer(result) === name)),
    ),
  ]);
  const lines = [['scenario', ...peers], ...rows];
  const widths = peers
    .concat('')
    .map((_, column) => Math.max(3, ...lines.map((line) => line[column]?.length ?? 0)));
  const text = (line: readonly string[], fill = ' '): string =>
    `| ${widths.map((width, column) => (line[column] ?? '').padEnd(width, fill)).join(' | ')} |`;
  const [head = [], ...body] = lines;
  return [text(head), text([], '-'), ...body.map((line) => text(line))].join('\n');
}

const unique = (names: readonly string[]): string[] => [...new Set(names)];

export function interopTable(results: readonly Result[]): string {
  const releases = unique(results.map(({ kernel, release }) => `${kernel} is ${release}`)).sort();
  const sides = unique(results.map(({ side }) => side)).map(
    (side) => `## ${side}\n\n${table(results.filter((result) => result.side === side))}\n`,
  );
  const passed = results.filter((result) => result.passed).length;
  return [
    HEAD,
    `${passed} of ${results.length} passed. Kernels, from Debian's packages: ${releases.join('; ')}.\n`,
    ...sides,
  ].join('\n');
}
