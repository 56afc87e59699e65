/** The floor: bare packets of the same reads and writes between two pinned threads (tools/limits/roce_floor.c). */
import { z } from 'zod';
import type { Figures, Subject } from './figures.ts';
import { run, SLACK_SECONDS, type FloorProgram } from './programs.ts';

const output = z.object({
  iops: z.number(),
  size: z.number(),
  p50_us: z.number(),
  p99_us: z.number(),
});

const TUNED = ['--nt', '--copyhdr', '--prefetch', '512', '--rxbatch', '4', '--hostchunk', '15'];

/** As tools/limits/run-limits.sh runs them; `depth` and `size` go with any. */
export const FLOOR_SHAPES = {
  read: TUNED,
  lowDepthRead: ['--nt', '--nojoin', '--delayack'],
  write: ['--op', 'write', ...TUNED],
  capsule: ['--op', 'capsule', '--mode', 'mmsg', '--nt'],
  cachedFile: ['--back', 'uring', ...TUNED],
} as const;
export type FloorShape = keyof typeof FLOOR_SHAPES;

export function floor(
  program: FloorProgram,
  shape: FloorShape,
  depth: number,
  bytes = 4096,
): Subject {
  return {
    name: `floor, ${shape}`,
    async measure(seconds): Promise<Figures> {
      const size = shape === 'capsule' ? [] : ['--size', `${bytes}`];
      const text = await run(
        await program.path(),
        [
          ...['--qd', `${depth}`, '--msecs', `${Math.round(seconds * 1000)}`, '--json'],
          ...size,
          ...FLOOR_SHAPES[shape],
        ],
        seconds + SLACK_SECONDS,
        { cwd: program.folder },
      );
      const { iops, p50_us, p99_us } = output.parse(JSON.parse(text));
      return { iops, bandwidth: iops * bytes, p50: p50_us, p99: p99_us };
    },
  };
}
