/** The report of a failover test: JSON for programs, Markdown, a table for the terminal, a page with plots. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { plainTable } from '../cli/tables.ts';
import type { FaultResult } from './analysis.ts';
import type { RunOutcome } from './run.ts';
import type { Plot } from './timeline.ts';

const HEAD = ['fault', 'begin', 'read stall', 'write stall', 'noticed', 'recovered', 'errors'];

const ms = (value: number | undefined): string =>
  value === undefined
    ? '-'
    : value >= 10_000
      ? `${(value / 1000).toFixed(1)} s`
      : `${value.toFixed(0)} ms`;

export const passed = (outcomes: readonly RunOutcome[]): boolean =>
  outcomes.length > 0 && outcomes.every(({ result }) => result.passed);

const verdict = (kept: boolean): string => (kept ? 'passed' : 'FAILED');

function cells(fault: FaultResult, index: number): string[] {
  return [
    `${index + 1} ${fault.name}`,
    `${(fault.beginMs / 1000).toFixed(1)} s`,
    ms(fault.readStallMs),
    ms(fault.writeStallMs),
    ms(fault.detectMs),
    ms(fault.recoverMs),
    String(fault.errors),
  ];
}

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
  const shown = 5;
  return [
    ...result.broken,
    ...result.faults.flatMap(({ name, broken }) => broken.map((text) => `${name}: ${text}`)),
    ...mismatches
      .slice(0, shown)
      .map(({ lba, found, expected }) => `LBA ${lba} holds ${found}, expected ${expected}`),
    ...errors
      .slice(0, shown)
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

export function markdown(outcomes: readonly RunOutcome[]): string {
  const row = (all: readonly string[]): string =>
    `| ${all.map((cell) => cell.replaceAll('|', '\\|')).join(' | ')} |`;
  return [
    `# Failover test: ${verdict(passed(outcomes))}`,
    '',
    ...outcomes.flatMap((outcome) => [
      `## ${outcome.record.scenario.name}: ${verdict(outcome.result.passed)}`,
      '',
      outcome.record.scenario.about,
      '',
      row(HEAD),
      row(HEAD.map(() => '---')),
      ...outcome.result.faults.map((fault, index) => row(cells(fault, index))),
      '',
      summary(outcome),
      '',
      ...complaints(outcome).map((text) => `- ${text}`),
      '',
    ]),
  ].join('\n');
}

/** For programs: without the log of every request. */
export function jsonReport(outcomes: readonly RunOutcome[]): object {
  return {
    passed: passed(outcomes),
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
figure { margin: 1em 0; } h3 { margin: 1em 0 0; font-size: 1em; } svg { max-width: 100%; height: auto; }`;

export function html(
  outcomes: readonly RunOutcome[],
  plots: (outcome: RunOutcome) => Plot[],
): string {
  const line = (tag: string, all: readonly string[]): string =>
    `<tr>${all.map((cell) => `<${tag}>${escape(cell)}</${tag}>`).join('')}</tr>`;
  const heading = (level: string, text: string, kept: boolean): string =>
    `<${level}>${escape(text)}: <span class="${verdict(kept)}">${verdict(kept)}</span></${level}>`;
  const sections = outcomes.map((outcome) =>
    [
      heading('h2', outcome.record.scenario.name, outcome.result.passed),
      `<p>${escape(outcome.record.scenario.about)}</p>`,
      `<table>${line('th', HEAD)}${outcome.result.faults.map((fault, index) => line('td', cells(fault, index))).join('\n')}</table>`,
      `<p>${escape(summary(outcome))}</p>`,
      `<ul>${complaints(outcome)
        .map((text) => `<li>${escape(text)}</li>`)
        .join('')}</ul>`,
      ...plots(outcome).map(({ title, svg }) => `<figure><h3>${escape(title)}</h3>${svg}</figure>`),
    ].join('\n'),
  );
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
