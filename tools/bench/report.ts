/** The report: JSON for programs, a Markdown table with the ratios, a page with plots that needs no network. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { charts } from './charts.ts';
import { medians, type Figures, type Metric } from './figures.ts';
import type { Limit } from './limits.ts';
import type { MachineDescription } from './machine.ts';
import type { Results, RowResult } from './measure.ts';

export interface Report {
  readonly machine: MachineDescription;
  /** Absent: not asked for. */
  readonly limits?: readonly Limit[];
  readonly results: Results;
}

const number = (value: number | undefined, digits: number): string =>
  value === undefined || Number.isNaN(value) ? '' : value.toFixed(digits);

const METRICS: Readonly<Record<Metric, (figures: Figures) => string>> = {
  iops: ({ iops }) => `${Math.round(iops / 1000)} k IOPS`,
  bandwidth: ({ bandwidth }) => `${(bandwidth / 1e9).toFixed(2)} GB/s`,
  p50: ({ p50 }) => `${number(p50, 1)} µs`,
  p99: ({ p99 }) => `${number(p99, 1)} µs`,
  hostCpu: ({ hostCpu }) => `${number(hostCpu, 2)} µs`,
  targetCpu: ({ targetCpu }) => `${number(targetCpu, 2)} µs`,
  iopsPerCpu: ({ iopsPerCpu }) => `${number((iopsPerCpu ?? NaN) / 1000, 0)} k I/Os a CPU second`,
  cpuShare: ({ cpuShare }) => `${number((cpuShare ?? NaN) * 100, 2)} % of a core`,
  memoryPerQueue: ({ memoryPerQueue }) => `${number((memoryPerQueue ?? NaN) / 1024, 1)} KiB`,
  retransmits: ({ retransmits }) => `${retransmits ?? 0}`,
  wrongReactor: ({ wrongReactor }) => `${wrongReactor ?? 0}`,
};

function goalText({ goal: { atLeast, atMost } }: RowResult): string {
  return atLeast === undefined ? `≤ ${atMost ?? ''}` : `≥ ${atLeast}`;
}

function rowCells(row: RowResult): string[] {
  const [subject, reference] = [medians(row.subject.rounds), medians(row.reference.rounds)];
  const show = METRICS[row.goal.metric];
  return [
    row.title,
    show(subject),
    `${show(reference)} (${row.reference.name})`,
    row.ratio.toFixed(2),
    goalText(row),
    row.reached ? 'reached' : 'not reached',
    number(subject.hostCpu, 2),
    number(subject.targetCpu, 2),
    number(subject.retransmits, 0),
    number(subject.wrongReactor, 0),
  ];
}

const HEAD = [
  ...['work', 'nvmeof', 'beside', 'ratio', 'goal', '', 'CPU per I/O, host (µs)'],
  ...['target (µs)', 'retransmissions', 'packets on the wrong reactor'],
];

const LIMITS_TITLE = 'What this machine carries without any protocol of ours';

export function markdown({ machine, limits = [], results }: Report): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(' | ')} |`;
  return [
    `# Benchmark of ${machine.date.slice(0, 10)}`,
    '',
    `${machine.processors} × ${machine.processor}${machine.hypervisor ? ', virtual' : ''}, ` +
      `${machine.memoryGib} GiB, ${machine.kernel}, Node ${machine.node}, commit ${machine.commit}. ` +
      `Medians of ${results.rounds} rounds of ${results.seconds} s, ours and its reference in turn. ` +
      '`npm run bench` repeats it.',
    '',
    line(HEAD),
    line(HEAD.map(() => '---')),
    ...results.rows.map((row) => line(rowCells(row))),
    '',
    ...(limits.length === 0 ? [] : [`## ${LIMITS_TITLE}`, '']),
    ...limits.flatMap(({ title, lines }) => [`${title}:`, '', '```', ...lines, '```', '']),
  ].join('\n');
}

const escape = (text: string): string =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('>', '&gt;');

const STYLE = `body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; color: #222; }
table { border-collapse: collapse; } td, th { padding: .3em .7em; border-bottom: 1px solid #ddd; text-align: left; }
td:nth-child(4) { font-weight: bold; } .missed td:nth-child(4) { color: #b00; } .reached td:nth-child(4) { color: #070; }
figure { margin: 2em 0; } svg { max-width: 100%; height: auto; }`;

export function html(report: Report): string {
  const { machine, limits = [], results } = report;
  const cells = (tag: string, all: readonly string[]): string =>
    all.map((cell) => `<${tag}>${escape(cell)}</${tag}>`).join('');
  const rows = results.rows.map(
    (row) => `<tr class="${row.reached ? 'reached' : 'missed'}">${cells('td', rowCells(row))}</tr>`,
  );
  const figures = charts(results).map(
    ({ title, svg }) => `<figure><h2>${escape(title)}</h2>${svg}</figure>`,
  );
  const raw = limits.map(
    ({ title, lines }) => `<h3>${escape(title)}</h3><pre>${escape(lines.join('\n'))}</pre>`,
  );
  const facts = Object.entries(machine).map(
    ([name, value]) => `<tr><th>${escape(name)}</th><td>${escape(String(value))}</td></tr>`,
  );
  return `<!doctype html>
<html lang="en"><meta charset="utf-8"><title>nvmeof benchmark</title><style>${STYLE}</style>
<h1>nvmeof benchmark</h1>
<p>Medians of ${results.rounds} rounds of ${results.seconds} s; ours and its reference in turn.</p>
<table><tr>${cells('th', HEAD)}</tr>${rows.join('\n')}</table>
${figures.join('\n')}
${raw.length === 0 ? '' : `<h2>${LIMITS_TITLE}</h2>`}${raw.join('\n')}
<h2>Machine</h2><table>${facts.join('\n')}</table>
</html>
`;
}

export function writeReport(folder: string, report: Report): void {
  mkdirSync(folder, { recursive: true });
  writeFileSync(join(folder, 'report.json'), `${JSON.stringify(report, null, 2)}\n`);
  writeFileSync(join(folder, 'report.md'), markdown(report));
  writeFileSync(join(folder, 'index.html'), html(report));
}
