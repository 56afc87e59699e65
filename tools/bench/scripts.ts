/** Loads of the library, each a script of this folder that runs as a process of its own and prints its figures. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import type { Figures, Subject } from './figures.ts';
import type { Parts } from './parts.ts';
import { run, SLACK_SECONDS } from './programs.ts';

const output = z.object({
  iops: z.number(),
  bandwidth: z.number(),
  p50: z.number().optional(),
  p99: z.number().optional(),
});

/** Started as SCRIPT ADDRESS NQN NUMBER SECONDS CORE. */
function script(parts: Parts, name: string, file: string, number: number): Subject {
  const path = fileURLToPath(new URL(file, import.meta.url));
  return {
    name,
    async measure(seconds): Promise<Figures> {
      const { address, nqn } = await parts.targets.get(parts.memory);
      const args = [address, nqn, `${number}`, `${seconds}`, `${parts.hostCore}`];
      const text = await run(
        process.execPath,
        ['--import', 'tsx', path, ...args],
        seconds + SLACK_SECONDS,
      );
      const { p50, p99, ...figures } = output.parse(JSON.parse(text));
      return {
        ...figures,
        ...(p50 === undefined ? {} : { p50 }),
        ...(p99 === undefined ? {} : { p99 }),
      };
    },
  };
}

/** `depth` reads awaited at a time, on one JavaScript thread. */
export function javascript(parts: Parts, depth: number): Subject {
  return script(parts, 'JavaScript', 'javascript-load.ts', depth);
}

/** A host at depth 1, alone or while others ask for all they can get. */
export function slowAmongGreedy(parts: Parts, greedy: number): Subject {
  const name = greedy === 0 ? 'alone' : `among ${greedy} greedy`;
  return script(parts, name, 'fairness-load.ts', greedy);
}
