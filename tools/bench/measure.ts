/** Runs the matrix: every row's two subjects one after the other, round after round, so that both see the same machine. */
import { Presets, SingleBar } from 'cli-progress';
import { medians, type Figures, type Subject } from './figures.ts';
import type { Goal, Matrix, Row, Sweep } from './parts.ts';

export interface RowResult extends Pick<Row, 'id' | 'title' | 'goal'> {
  readonly subject: { readonly name: string; readonly rounds: readonly Figures[] };
  readonly reference: { readonly name: string; readonly rounds: readonly Figures[] };
  /** Of the medians. */
  readonly ratio: number;
  readonly reached: boolean;
}

export interface SweepResult extends Pick<Sweep, 'id' | 'title' | 'axis'> {
  readonly points: readonly ({ readonly x: number } & Figures)[];
}

export interface Results {
  readonly rounds: number;
  readonly seconds: number;
  readonly rows: readonly RowResult[];
  readonly sweeps: readonly SweepResult[];
}

export interface MeasureOptions {
  readonly rounds: number;
  readonly seconds: number;
  readonly progress: boolean;
}

function reached(ratio: number, { atLeast, atMost }: Goal): boolean {
  return (atLeast === undefined || ratio >= atLeast) && (atMost === undefined || ratio <= atMost);
}

function rowResult(
  row: Row,
  subject: readonly Figures[],
  reference: readonly Figures[],
): RowResult {
  const { id, title, goal } = row;
  const ratio = (medians(subject)[goal.metric] ?? NaN) / (medians(reference)[goal.metric] ?? NaN);
  return {
    ...{ id, title, goal, ratio, reached: reached(ratio, goal) },
    subject: { name: row.subject.name, rounds: subject },
    reference: { name: row.reference.name, rounds: reference },
  };
}

export async function measure(matrix: Matrix, options: MeasureOptions): Promise<Results> {
  const { rounds, seconds } = options;
  const points = matrix.sweeps.flatMap((sweep) => sweep.points);
  const bar = new SingleBar(
    { format: '{bar} {value}/{total}  {what}', hideCursor: true, stream: process.stderr },
    Presets.shades_classic,
  );
  const measured = matrix.rows.reduce((sum, { once }) => sum + (once === true ? 2 : 2 * rounds), 0);
  if (options.progress) bar.start(measured + points.length, 0, { what: '' });
  const one = async (what: string, subject: Subject): Promise<Figures> => {
    if (options.progress) bar.update({ what: `${what}: ${subject.name}` });
    const figures = await subject.measure(seconds);
    if (options.progress) bar.increment();
    return figures;
  };
  try {
    const subjects = matrix.rows.map((): Figures[] => []);
    const references = matrix.rows.map((): Figures[] => []);
    for (let round = 0; round < rounds; round++) {
      for (const [index, row] of matrix.rows.entries()) {
        if (round > 0 && row.once === true) continue;
        subjects[index]?.push(await one(row.title, row.subject));
        references[index]?.push(await one(row.title, row.reference));
      }
    }
    const sweeps: SweepResult[] = [];
    for (const { id, title, axis, points: wanted } of matrix.sweeps) {
      const curve: (Figures & { x: number })[] = [];
      for (const { x, subject } of wanted) curve.push({ x, ...(await one(title, subject)) });
      sweeps.push({ id, title, axis, points: curve });
    }
    const rows = matrix.rows.map((row, index) =>
      rowResult(row, subjects[index] ?? [], references[index] ?? []),
    );
    return { rounds, seconds, rows, sweeps };
  } finally {
    if (options.progress) bar.stop();
  }
}
