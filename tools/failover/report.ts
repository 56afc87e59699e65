/** The report of a failover test: JSON for programs, Markdown, a table for the terminal, a page with plots. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { plainTable } from '../cli/tables.ts';
import type { FaultResult } from './analysis.ts';
import { FIGURES, repeatsOf, worstRun } from './repeats.ts';
import type { Figure, Repeats, Spread } from './repeats.ts';
import type { RunOutcome } from './run.ts';
import type { Plot } from './timeline.ts';

const TITLES: Readonly<Record<Figure, string>> = {
  readStallMs: 'read stall',
  writeStallMs: 'write stall',
  detectMs: 'noticed',
  recoverMs: 'recovered',
  returnMs: 'returned',
  returnStallMs: 'stall on return',
  errors: 'errors',
};
const FIGURE_HEAD = FIGURES.map((figure) => TITLES[figure]);
const HEAD = ['fault', 'begin', ...FIGURE_HEAD];
const SPREAD_HEAD = ['fault', ...FIGURE_HEAD];

const ms = (value: number | undefined): string =>
  value === undefined
    ? '-'
    : value >= 10_000
      ? `${(value / 1000).toFixed(1)} s`
      : `${value.toFixed(0)} ms`;

export const passed = (outcomes: readonly RunOutcome[]): boolean =>
  outcomes.length > 0 && outcomes.every(({ result }) => result.passed);

const verdict = (kept: boolean): string => (kept ? 'passed' : 'FAILED');

const shown = (figure: Figure, value: number | undefined): string =>
  figure === 'errors' ? String(value ?? 0) : ms(value);

function cells(fault: FaultResult, index: number): string[] {
  return [
    `${index + 1} ${fault.name}`,
    `${(fault.beginMs / 1000).toFixed(1)} s`,
    ...FIGURES.map((figure) => shown(figure, fault[figure])),
  ];
}

/** "21 ms (9 ms)": the worst, and the median; how many have it, unless all do. */
function spreadCell(figure: Figure, spread: Spread | undefined, runs: number): string {
  if (spread === undefined) return '-';
  const few = spread.runs === runs ? '' : `, ${spread.runs} of ${runs}`;
  return `${shown(figure, spread.worst)} (${shown(figure, spread.median)}${few})`;
}

const spreadRows = ({ faults, outcomes }: Repeats): string[][] =>
  faults.map(({ name, figures }, index) => [
    `${index + 1} ${name}`,
    ...FIGURES.map((figure) => spreadCell(figure, figures[figure], outcomes.length)),
  ]);

const spreadTitle = ({ outcomes, failed }: Repeats): string =>
  `worst (median) of ${outcomes.length} runs, ${failed} of which failed`;

/** The run of several, counted from 1. */
const runName = ({ scenario, outcomes }: Repeats, index: number): string =>
  outcomes.length > 1 ? `${scenario.name}, run ${index + 1}` : scenario.name;

/** "passed: 16000 requests, 0 failed, 12100 blocks compared, 0 wrong" */
export function summary({ record, result, inDoubt }: RunOutcome): string {
  const parts = [
    `${result.requests} requests in ${(record.durationMs / 1000).toFixed(1)} s`,
    `${result.errors} failed`,
    `${record.blocksVerified} blocks compared`,
    `${record.mismatches} wrong`,
  ];
  if (record.retries !== undefined) parts.push(`${record.retries} sent again on another path`);
  if (inDoubt > 0) parts.push(`${inDoubt} places in doubt after failed writes`);
  return parts.join(', ');
}

/** Every bound that was not kept, every wrong block, the first errors. */
export function complaints({ result, mismatches, errors }: RunOutcome): string[] {
  const most = 5;
  return [
    ...result.broken,
    ...result.faults.flatMap(({ name, broken }) => broken.map((text) => `${name}: ${text}`)),
    ...mismatches
      .slice(0, most)
      .map(({ lba, found, expected }) => `LBA ${lba} holds ${found}, expected ${expected}`),
    ...errors
      .slice(0, most)
      .map(
        ({ atMs, operation, lba, message }) =>
          `${ms(atMs)}: ${operation} at LBA ${lba}: ${message}`,
      ),
  ];
}

export function terminalReport(outcome: RunOutcome): string {
  const { record, result } = outcome;
  return [
    `${record.scenario.name}: ${verdict(result.passed)}`,
    plainTable(HEAD, result.faults.map(cells)),
    summary(outcome),
    ...complaints(outcome).map((text) => `  ${text}`),
  ].join('\n');
}

/** Of several runs; empty when there is no more than one. */
export function terminalSpread(outcomes: readonly RunOutcome[]): string {
  return repeatsOf(outcomes)
    .filter((each) => each.outcomes.length > 1)
    .map((each) =>
      [
        `${each.scenario.name}: ${verdict(each.failed === 0)}, ${spreadTitle(each)}`,
        plainTable(SPREAD_HEAD, spreadRows(each)),
      ].join('\n'),
    )
    .join('\n');
}

const markdownRow = (all: readonly string[]): string =>
  `| ${all.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;

const markdownTable = (head: readonly string[], rows: readonly (readonly string[])[]): string[] => [
  markdownRow(head),
  markdownRow(head.map(() => '---')),
  ...rows.map(markdownRow),
  '',
];

function markdownOf(repeats: Repeats): string[] {
  const { scenario, outcomes, failed } = repeats;
  const several = outcomes.length > 1;
  const together = [
    ...[`## ${scenario.name}: ${verdict(failed === 0)}`, '', scenario.about, ''],
    ...(several ? [`${spreadTitle(repeats)}:`, ''] : []),
    ...(several ? markdownTable(SPREAD_HEAD, spreadRows(repeats)) : []),
  ];
  const each = outcomes.flatMap((outcome, index) => [
    ...(several ? [`### ${runName(repeats, index)}: ${verdict(outcome.result.passed)}`, ''] : []),
    ...markdownTable(HEAD, outcome.result.faults.map(cells)),
    ...[summary(outcome), '', ...complaints(outcome).map((text) => `- ${text}`), ''],
  ]);
  return [...together, ...each];
}

export function markdown(outcomes: readonly RunOutcome[]): string {
  const title = `# Failover test: ${verdict(passed(outcomes))}`;
  return [title, '', ...repeatsOf(outcomes).flatMap(markdownOf)].join('\n');
}

/** For programs: without the log of every request. */
export function jsonReport(outcomes: readonly RunOutcome[]): object {
  return {
    passed: passed(outcomes),
    scenarios: repeatsOf(outcomes).map(({ scenario, outcomes: own, failed, faults }) => ({
      ...{ scenario: scenario.name, runs: own.length, failed, faults },
    })),
    runs: outcomes.map(({ record, result, load, errors, mismatches, inDoubt }) => ({
      ...{ scenario: record.scenario, load, ...result, durationMs: record.durationMs },
      ...{ blocksVerified: record.blocksVerified, wrongBlocks: record.mismatches, mismatches },
      ...{ paths: record.paths, retries: record.retries, inDoubt, firstErrors: errors },
    })),
  };
}

const escape = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

const STYLE = `body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } td, th { padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: left; }
td:nth-child(n+2), th:nth-child(n+2) { text-align: right; } .FAILED { color: #b00; } .passed { color: #070; }
figure { margin: 1em 0; } h4 { margin: 1em 0 0; font-size: 1em; } svg { max-width: 100%; height: auto; }`;

const htmlRow = (tag: string, all: readonly string[]): string =>
  `<tr>${all.map((cell) => `<${tag}>${escape(cell)}</${tag}>`).join('')}</tr>`;
const htmlTable = (head: readonly string[], rows: readonly (readonly string[])[]): string =>
  `<table>${htmlRow('th', head)}${rows.map((row) => htmlRow('td', row)).join('\n')}</table>`;
const heading = (level: string, text: string, kept: boolean): string =>
  `<${level}>${escape(text)}: <span class="${verdict(kept)}">${verdict(kept)}</span></${level}>`;

/** Curves of the run with the longest stall, and of each that failed: thirty that passed look the same. */
function htmlOf(repeats: Repeats, plots: (outcome: RunOutcome) => Plot[]): string {
  const { scenario, outcomes, failed } = repeats;
  const several = outcomes.length > 1;
  const worst = worstRun(repeats);
  const runs = outcomes.flatMap((outcome, index) => [
    ...(several ? [heading('h3', runName(repeats, index), outcome.result.passed)] : []),
    htmlTable(HEAD, outcome.result.faults.map(cells)),
    `<p>${escape(summary(outcome))}</p>`,
    `<ul>${complaints(outcome)
      .map((text) => `<li>${escape(text)}</li>`)
      .join('')}</ul>`,
    ...(outcome === worst || !outcome.result.passed ? plots(outcome) : []).map(
      ({ title, svg }) => `<figure><h4>${escape(title)}</h4>${svg}</figure>`,
    ),
  ]);
  return [
    heading('h2', scenario.name, failed === 0),
    `<p>${escape(scenario.about)}</p>`,
    ...(several ? [`<p>${escape(spreadTitle(repeats))}</p>`] : []),
    ...(several ? [htmlTable(SPREAD_HEAD, spreadRows(repeats))] : []),
    ...runs,
  ].join('\n');
}

export function html(
  outcomes: readonly RunOutcome[],
  plots: (outcome: RunOutcome) => Plot[],
): string {
  const sections = repeatsOf(outcomes).map((each) => htmlOf(each, plots));
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>nvmeof failover test</title><style>${STYLE}</style>
${heading('h1', 'Failover test', passed(outcomes))}
${sections.join('\n')}
</html>
`;
}

/** Returns what was written; the page only where echarts is installed. */
export async function writeReport(
  folder: string,
  outcomes: readonly RunOutcome[],
): Promise<string[]> {
  mkdirSync(folder, { recursive: true });
  const files: [string, string][] = [
    ['failover.json', `${JSON.stringify(jsonReport(outcomes), null, 2)}\n`],
    ['failover.md', markdown(outcomes)],
  ];
  const drawing = await import('./timeline.ts').catch(() => undefined);
  if (drawing) files.push(['failover.html', html(outcomes, drawing.timeline)]);
  for (const [name, text] of files) writeFileSync(join(folder, name), text);
  return files.map(([name]) => join(folder, name));
}
