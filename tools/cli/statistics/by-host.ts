/** What belongs to one host in one subsystem, together, in the order in which the hosts appear. */
import type { QueueReport } from '../../../target/index.ts';

export function byHost<T>(all: readonly T[], queueOf: (one: T) => QueueReport): T[][] {
  const groups = new Map<string, T[]>();
  for (const one of all) {
    const { subsystemNqn, hostNqn } = queueOf(one);
    const key = `${subsystemNqn} ${hostNqn}`;
    const group = groups.get(key);
    if (group) group.push(one);
    else groups.set(key, [one]);
  }
  return [...groups.values()];
}
