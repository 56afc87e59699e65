/**
 * What one I/O costs on the simulated link (native/test/cost/io_cost.cc): user-space instructions of each side, counted by
 * callgrind, and the system calls that the real link would make. None of it depends on the speed of the machine, so it can be
 * compared with what was recorded.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

const run = promisify(execFile);

export const SIDES = ['host', 'target'] as const;
export type Side = (typeof SIDES)[number];

export interface Work {
  readonly name: string;
  readonly rw: 'read' | 'write';
  readonly bytes: number;
  readonly depth: number;
  readonly commands: number;
}

const workOf = (rw: Work['rw'], kib: number, depth: number, commands: number): Work => ({
  ...{ name: `${kib} KiB ${rw}, depth ${depth}`, rw, bytes: kib * 1024, depth, commands },
});

export const WORKS: readonly Work[] = [
  ...[1, 32, 128].flatMap((depth) => [
    workOf('read', 4, depth, 1024),
    workOf('write', 4, depth, 1024),
  ]),
  ...[workOf('read', 128, 32, 256), workOf('write', 128, 32, 256)],
];

/** Of one side, per command. */
export interface Cost {
  readonly instructions: number;
  readonly systemCalls: number;
}

export type Costs = Readonly<Record<Side, Cost>>;
/** By name of the work. */
export type CostsByWork = Readonly<Record<string, Costs>>;

/** Regressions made on purpose: every packet sent by itself; every checksum checked twice. */
export type Plant = 'trains' | 'checks';

interface Counted {
  readonly compiler: string;
  readonly copy: string;
  readonly host: { readonly sendCalls: number; readonly receiveCalls: number };
  readonly target: { readonly sendCalls: number; readonly receiveCalls: number };
}

function programArguments({ rw, bytes, depth, commands }: Work, plant?: Plant): string[] {
  return [
    ...['--rw', rw, '--bs', `${bytes}`, '--qd', `${depth}`, '--count', `${commands}`],
    ...(plant === undefined ? [] : ['--plant', plant]),
  ];
}

async function callgrind(
  program: string,
  args: readonly string[],
): Promise<{ counted: Counted; instructions: number }> {
  const { stdout, stderr } = await run('valgrind', [
    ...['--tool=callgrind', '--collect-atstart=no', '--callgrind-out-file=/dev/null'],
    ...[program, ...args],
  ]);
  const collected = /Collected : (\d+)/.exec(stderr);
  if (!collected) throw new Error(`callgrind counted nothing:\n${stderr}`);
  return { counted: JSON.parse(stdout) as Counted, instructions: Number(collected[1]) };
}

/** Instructions are those of a compiler and of a vector width: costs of others cannot be compared. */
export async function buildName(program: string): Promise<string> {
  const { counted } = await callgrind(program, ['--count', '16']);
  return `${counted.compiler}, ${counted.copy}`;
}

export async function measure(program: string, work: Work, plant?: Plant): Promise<Costs> {
  const [host, target] = await Promise.all(
    SIDES.map(async (side): Promise<Cost> => {
      const { counted, instructions } = await callgrind(program, [
        ...programArguments(work, plant),
        ...['--side', side],
      ]);
      const { sendCalls, receiveCalls } = counted[side];
      return {
        instructions: Math.round(instructions / work.commands),
        systemCalls: (sendCalls + receiveCalls) / work.commands,
      };
    }),
  );
  if (!host || !target) throw new Error('a side is missing');
  return { host, target };
}

/** What differs from the record by more than `tolerance` (0.05: 5 %), one sentence each. */
export function differences(recorded: Costs, now: Costs, tolerance: number): string[] {
  return SIDES.flatMap((side) =>
    (['instructions', 'systemCalls'] as const).flatMap((what) => {
      const [before, after] = [recorded[side][what], now[side][what]];
      const change = after / before - 1;
      if (Math.abs(change) <= tolerance) return [];
      const percent = `${change > 0 ? '+' : ''}${(change * 100).toFixed(1)} %`;
      return `${side}: ${+after.toFixed(3)} ${what === 'instructions' ? what : 'system calls'} per command, recorded ${+before.toFixed(3)} (${percent})`;
    }),
  );
}
