/** Tables and figures for people: cli-table3 without colours, numbers with their units. */
import Table from 'cli-table3';
import type { BenchSide } from '../../native/index.ts';
import { bytesPerSecond, commandsPerSecond } from './fio-json.ts';

export function plainTable(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const table = new Table({
    head: [...head],
    style: { head: [], border: [], compact: true },
    colAligns: head.map((_, index) => (index === 0 ? 'left' : 'right')),
  });
  for (const row of rows) table.push([...row]);
  return table.toString();
}

/** Two columns without borders: names and values. */
export function properties(rows: readonly (readonly [string, string])[]): string {
  const width = Math.max(...rows.map(([name]) => name.length));
  return rows.map(([name, value]) => `${name.padEnd(width)}  ${value}`).join('\n');
}

export function microseconds(ns: number): string {
  const us = ns / 1000;
  if (us >= 100_000) return `${(us / 1000).toFixed(0)} ms`;
  return us >= 100 ? `${us.toFixed(0)} µs` : `${us.toFixed(1)} µs`;
}

export interface BenchRow {
  readonly name: string;
  readonly side: BenchSide;
  /** CPU use of each reactor in percent of one core. */
  readonly cpuPercent: readonly number[];
}

export const BENCH_HEAD = ['', 'IOPS', 'MB/s', 'mean', 'p50', 'p99', 'p99.9', 'CPU per core'];

export function benchRow(row: BenchRow): string[] {
  const { side } = row;
  const at = (percentile: number): string => {
    const found = side.percentiles.find(([p]) => p === percentile);
    return found ? microseconds(Number(found[1])) : '-';
  };
  return [
    row.name,
    Math.round(commandsPerSecond(side)).toLocaleString('en-US'),
    (bytesPerSecond(side) / 1e6).toFixed(1),
    microseconds(side.latencyMean),
    at(50),
    at(99),
    at(99.9),
    row.cpuPercent.map((percent) => `${percent.toFixed(0)} %`).join(' '),
  ];
}

export function benchTable(rows: readonly BenchRow[]): string {
  return plainTable(BENCH_HEAD, rows.map(benchRow));
}
