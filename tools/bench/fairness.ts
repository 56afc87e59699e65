/** One host at depth 1, alone or while others ask for all they can get. */
import type { Figures, Subject } from './figures.ts';
import { runLoad } from './ours.ts';
import type { Parts } from './parts.ts';

/** Longer than the slow host takes to connect, measure and end. */
const GREEDY_BEYOND_SECONDS = 3;

export function slowAmongGreedy(parts: Parts, greedy: number): Subject {
  return {
    name: greedy === 0 ? 'alone' : `among ${greedy} greedy`,
    async measure(seconds): Promise<Figures> {
      const target = await parts.targets.get(parts.memory);
      const load = { cores: [parts.hostCore] };
      const others = Array.from({ length: greedy }, () =>
        runLoad(target, { ...load, depth: 128 }, seconds + GREEDY_BEYOND_SECONDS),
      );
      // They connect in well under a second, and the slow host only then.
      if (greedy > 0) await new Promise((resolve) => setTimeout(resolve, 1500));
      const slow = await runLoad(target, { ...load, depth: 1 }, seconds);
      await Promise.all(others);
      return slow;
    },
  };
}
