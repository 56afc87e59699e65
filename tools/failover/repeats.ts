/** Runs of one scenario taken together: of each figure of each fault the worst and the median. Pure. */
import type { FaultResult } from './analysis.ts';
import type { RunOutcome } from './run.ts';
import type { Scenario } from './scenario.ts';

export interface Spread {
  readonly worst: number;
  /** The lower of two in the middle. */
  readonly median: number;
  /** Runs that have the figure. */
  readonly runs: number;
}

/** Figures of a fault, all of which are the worse the larger they are. */
export const FIGURES = [
  'readStallMs',
  'writeStallMs',
  'detectMs',
  'recoverMs',
  'returnMs',
  'returnStallMs',
  'errors',
] as const satisfies readonly (keyof FaultResult)[];
export type Figure = (typeof FIGURES)[number];

export interface FaultSpread {
  readonly name: string;
  /** Absent: no run has it. */
  readonly figures: Readonly<Partial<Record<Figure, Spread>>>;
}

export interface Repeats {
  readonly scenario: Scenario;
  readonly outcomes: readonly RunOutcome[];
  readonly failed: number;
  readonly faults: readonly FaultSpread[];
}

export function spreadOf(values: readonly number[]): Spread | undefined {
  const sorted = [...values].sort((a, b) => a - b);
  const worst = sorted.at(-1);
  const median = sorted[(sorted.length - 1) >> 1];
  if (worst === undefined || median === undefined) return undefined;
  return { worst, median, runs: sorted.length };
}

function faultSpread(results: readonly FaultResult[]): FaultSpread {
  const figures: Partial<Record<Figure, Spread>> = {};
  for (const figure of FIGURES) {
    const spread = spreadOf(results.flatMap((each) => each[figure] ?? []));
    if (spread) figures[figure] = spread;
  }
  return { name: results[0]?.name ?? '', figures };
}

/** By scenario, in the order in which they came first. */
export function repeatsOf(outcomes: readonly RunOutcome[]): Repeats[] {
  const scenarios = new Set(outcomes.map(({ record }) => record.scenario));
  return [...scenarios].map((scenario) => {
    const own = outcomes.filter(({ record }) => record.scenario === scenario);
    return {
      ...{ scenario, outcomes: own, failed: own.filter(({ result }) => !result.passed).length },
      faults: scenario.faults.map((_, index) =>
        faultSpread(own.flatMap(({ result }) => result.faults[index] ?? [])),
      ),
    };
  });
}

/** The run with the longest stall; of one run, that. */
export function worstRun({ outcomes }: Repeats): RunOutcome | undefined {
  const stall = ({ result }: RunOutcome): number =>
    Math.max(0, ...result.faults.map((each) => Math.max(each.readStallMs, each.writeStallMs)));
  return outcomes.reduce<RunOutcome | undefined>(
    (worst, each) => (worst === undefined || stall(each) > stall(worst) ? each : worst),
    undefined,
  );
}
