/** What this machine's kernel and memory carry without any protocol of ours: tools/limits/run-limits.sh, read into sections. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { messageOf } from '../../native/common/errors.ts';
import { run, SLACK_SECONDS } from './programs.ts';

const SCRIPT = fileURLToPath(new URL('../limits/run-limits.sh', import.meta.url));
/** Two dozen programs of up to ten seconds, and their build. */
const LIMITS_SECONDS = 600;

export interface Limit {
  readonly title: string;
  /** One a run, as the program printed it. */
  readonly lines: readonly string[];
}

/** Lines behind a '# title', up to the next; those before the first title are the checksum's. */
export function parseLimits(text: string): Limit[] {
  const found: { title: string; lines: string[] }[] = [{ title: 'checksum', lines: [] }];
  for (const line of text.split('\n')) {
    if (line.startsWith('# ')) found.push({ title: line.slice(2), lines: [] });
    else if (line.trim() !== '') found.at(-1)?.lines.push(line.trimEnd());
  }
  return found.filter(({ lines }) => lines.length > 0);
}

/** Threads of a program that do not get their cores take for ever: what came in time stands in the report, and that it is not all. */
export async function rawLimits(folder: string, seconds = LIMITS_SECONDS): Promise<Limit[]> {
  try {
    // timeout ends the script's programs with it: they spin.
    const bounded = ['--signal=KILL', `${seconds}`, 'bash', SCRIPT, folder];
    return parseLimits(await run('timeout', bounded, seconds + SLACK_SECONDS));
  } catch (error) {
    const { stdout } = z.object({ stdout: z.string().default('') }).parse(error);
    return [...parseLimits(stdout), { title: 'not finished', lines: [messageOf(error)] }];
  }
}
