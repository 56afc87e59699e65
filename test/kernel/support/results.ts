/**
 * The results of scenarios, in test/kernel/results.json, and the table that docs/interop.md shows of them. A run
 * replaces the results of the scenarios it ran and keeps the others, each with its date.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { writeTable } from './environment.ts';
import { interopTable, type Result } from './interop-table.ts';

export type { Result };

const RESULTS = fileURLToPath(new URL('../results.json', import.meta.url));
const TABLE = fileURLToPath(new URL('../../../docs/interop.md', import.meta.url));

/** Written at once, so that a run that is broken off keeps what it has shown. */
export function record(result: Result): void {
  if (!writeTable) return;
  const others = readResults().filter((old) => key(old) !== key(result));
  const merged = [...others, result].sort((a, b) => (key(a) < key(b) ? -1 : 1));
  writeFileSync(RESULTS, `${JSON.stringify(merged, undefined, 2)}\n`);
  writeFileSync(TABLE, interopTable(merged));
}

const key = (result: Result): string =>
  [result.side, result.scenario, result.kernel, result.driver, result.family, result.mtu].join('|');

function readResults(): Result[] {
  try {
    return JSON.parse(readFileSync(RESULTS, 'utf8')) as Result[];
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
    throw error;
  }
}
