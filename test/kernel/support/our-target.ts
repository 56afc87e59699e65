/** `nvmeof target` outside the guests, on the soft provider, as a kernel host finds it. */

import { closeSync, openSync, truncateSync } from 'node:fs';
import { join } from 'node:path';
import type { Process } from '../../support/processes.ts';
import type { Lab } from './scenario.ts';

export const NQN = 'nqn.2026-11.io.nvmeof:kernel-test';
export const PORT = 4420;

export interface OurTarget {
  readonly address: string;
  readonly nqn: string;
  readonly process: Process;
  /** What namespace 1 is stored on. */
  readonly file: string;
  /** Its counters now, those that are not zero. */
  counters(): Promise<Readonly<Record<string, number>>>;
  /** Kills it (default) or stops it in order, and starts it again with the same arguments after `awayMs`. */
  restart(signal?: NodeJS.Signals, awayMs?: number): Promise<OurTarget>;
}

export interface TargetOptions {
  /** What namespace 1 is stored on (default: a new file of `size` bytes). */
  readonly path?: string;
  readonly size?: number;
  /** Options of that export: "bs=4096". */
  readonly exportOptions?: string;
  /** More arguments of `nvmeof target`, or instead of the export when `bare`. */
  readonly args?: readonly string[];
  readonly bare?: boolean;
  readonly address?: string;
  readonly nqn?: string;
}

let started = 0;

/** A sparse file of the scenario. */
export function sparseFile(lab: Lab, name: string, size: number): string {
  const file = join(lab.folder, name);
  closeSync(openSync(file, 'w'));
  truncateSync(file, size);
  return file;
}

export async function startOurTarget(lab: Lab, options: TargetOptions = {}): Promise<OurTarget> {
  const {
    size = 256 << 20,
    exportOptions,
    args = [],
    bare,
    address = lab.address,
    nqn = NQN,
    path,
  } = options;
  const file = bare ? '' : (path ?? sparseFile(lab, `namespace${(started += 1)}.img`, size));
  const what = exportOptions === undefined ? file : `${file},${exportOptions}`;
  return launch(lab, address, nqn, file, [
    ...['target', '--nqn', nqn, '--listen', address.includes(':') ? `[${address}]` : address],
    ...(bare ? [] : ['--export', what]),
    ...args,
  ]);
}

async function launch(
  lab: Lab,
  address: string,
  nqn: string,
  file: string,
  args: string[],
): Promise<OurTarget> {
  const process = lab.nvmeof(`target${(started += 1)}`, args);
  await process.waitFor(/nvme connect -t rdma/);
  return {
    ...{ address, nqn, process, file, counters: () => readCounters(process) },
    restart: async (signal = 'SIGKILL', awayMs = 0) => {
      await process.stop(signal);
      await new Promise((resolve) => setTimeout(resolve, awayMs));
      return launch(lab, address, nqn, file, args);
    },
  };
}

const COUNTERS_MS = 10_000;

/** Asks by SIGUSR1; the answer is the next log line of counters. */
async function readCounters(process: Process): Promise<Readonly<Record<string, number>>> {
  const lines = (): string[] =>
    `${process.stdout}\n${process.stderr}`
      .split('\n')
      .filter((line) => line.includes('"msg":"counters"'));
  const before = lines().length;
  process.child.kill('SIGUSR1');
  const deadline = Date.now() + COUNTERS_MS;
  while (lines().length === before) {
    if (Date.now() > deadline) throw new Error('the target does not log its counters');
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  const entries = Object.entries(JSON.parse(lines().at(-1) ?? '') as object) as [string, unknown][];
  return Object.fromEntries(
    entries.filter((entry): entry is [string, number] => typeof entry[1] === 'number'),
  );
}

/** Those of what is open at the moment, but for a buffer that comes and goes with the load. */
export function live(counters: Readonly<Record<string, number>>): Record<string, number> {
  return Object.fromEntries(Object.entries(counters).filter(([name]) => name.startsWith('live.')));
}
