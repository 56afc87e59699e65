/** `npm run bench`: see bench.sh. */
import { cpus, tmpdir } from 'node:os';
import { mkdtempSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import { Command } from 'commander';
import { runProgram } from '../run-program.ts';
import { coreList, seconds, wholeNumber } from '../cli/arguments.ts';
import { messageOf } from '../../native/common/errors.ts';
import { rawLimits } from './limits.ts';
import { describeMachine } from './machine.ts';
import { measure } from './measure.ts';
import { Targets } from './ours.ts';
import { FloorProgram } from './programs.ts';
import { markdown, writeReport } from './report.ts';
import { makeFile, Parts, type Matrix, type Row } from './parts.ts';
import { rows } from './rows.ts';
import { sweeps } from './sweeps.ts';

interface Flags {
  readonly rounds: number;
  readonly seconds: number;
  readonly quick?: boolean;
  readonly only?: string;
  readonly cores: number[];
  readonly out: string;
  readonly limits?: boolean;
  readonly strict?: boolean;
}

function chosen(all: Matrix, { only, quick }: Flags): Matrix {
  const wanted = ({ id }: { readonly id: string }): boolean =>
    only === undefined || new RegExp(only).test(id);
  const result = {
    rows: all.rows.filter(wanted),
    sweeps: quick === true ? [] : all.sweeps.filter(wanted),
  };
  if (result.rows.length + result.sweeps.length === 0) {
    const ids = [...all.rows, ...all.sweeps].map(({ id }) => id).join(', ');
    throw new Error(`--only ${only ?? ''} matches nothing; there are: ${ids}`);
  }
  return result;
}

/** Without the rows that this machine cannot have, and says why. */
async function prepared(matrix: Matrix): Promise<Matrix> {
  const rows: Row[] = [];
  for (const row of matrix.rows) {
    try {
      await row.prepare?.();
      rows.push(row);
    } catch (error) {
      process.stderr.write(`bench: without ${row.id}: ${messageOf(error)}\n`);
    }
  }
  return { ...matrix, rows };
}

async function bench(flags: Flags): Promise<void> {
  const [target, host] = flags.cores;
  if (target === undefined || host === undefined) {
    throw new Error('--cores needs two: of the target and of the host, such as 0,1');
  }
  if (Math.max(target, host) >= cpus().length) {
    throw new Error(`--cores: this machine has cores 0 to ${cpus().length - 1}`);
  }
  const folder = mkdtempSync(join(tmpdir(), 'nvmeof-bench-'));
  const targets = new Targets();
  try {
    const file = makeFile(join(folder, 'namespace.img'));
    const parts = new Parts(targets, new FloorProgram(folder), [target, host], file);
    const all = { rows: rows(parts), sweeps: sweeps(parts) };
    const results = await measure(await prepared(chosen(all, flags)), {
      rounds: flags.rounds,
      seconds: flags.seconds / 1000,
      progress: process.stderr.isTTY,
    });
    const whole = flags.quick !== true && flags.only === undefined;
    const limits = (flags.limits ?? whole) ? await rawLimits(folder) : undefined;
    const report = {
      machine: describeMachine(new Date()),
      ...(limits === undefined ? {} : { limits }),
      results,
    };
    writeReport(flags.out, report);
    process.stdout.write(
      `${markdown(report)}\nWritten to ${flags.out}/: report.json, report.md, index.html\n`,
    );
    if (flags.strict === true && results.rows.some(({ reached }) => !reached)) process.exitCode = 1;
  } finally {
    await targets.end();
    rmSync(folder, { recursive: true, force: true });
  }
}

const program = new Command('npm run bench --')
  .description(
    'Measures target and initiator on this machine beside the bare packets of the same data path, and writes a report.',
  )
  .option('--rounds <n>', 'of each comparison; the medians count', wholeNumber(1, 99), 5)
  .option('--seconds <time>', 'of each measurement (default: 2)', seconds, 2000)
  .option('--quick', 'comparisons only, no curves')
  .option('--only <pattern>', 'rows and curves whose id matches (regular expression)')
  .option('--cores <list>', 'core of the target and core of the host', coreList, [0, 1])
  .option('--out <folder>', 'where the report goes', 'bench-report')
  .option(
    '--limits',
    'measure what the machine carries without us, too (two minutes; default: without --quick and --only)',
  )
  .option('--no-limits', 'leave that out')
  .option('--strict', 'exit code 1 when a goal is not reached')
  .action(bench);

await runProgram(program, (message) => `bench: ${message}`);
