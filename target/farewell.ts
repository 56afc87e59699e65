/**
 * Before associations end: hosts are told by ANA states that nothing can be reached here any more, and get a moment to take their
 * other paths. I/O is served meanwhile, so that those who know no other path lose nothing, and those who do have nothing under way
 * when the end comes.
 */
import { formatEndpoint } from '../native/common/address.ts';
import { sleep, within } from '../native/common/clock.ts';
import type { QueueStatistics } from '../native/index.ts';
import type { Context } from './context.ts';
import type { Controller } from './controller.ts';
import type { Port } from './port.ts';
import type { Subsystem } from './subsystem.ts';

/** For hosts to read the log page. */
const READ_MS_MAX = 250;
/** And, once they have, for their I/O to come to rest: none in two steps. */
const REST_STEP_MS = 5;
const REST_MS_MAX = 100;

/** Commands so far on the I/O queues of these controllers. */
function commandsOf(controllers: readonly Controller[], all: readonly QueueStatistics[]): number {
  const queues = controllers.flatMap(({ ioQueues }) => [...ioQueues.values()]);
  const mine = new Set(queues.map(({ id }) => id));
  return all
    .filter(({ queue }) => mine.has(queue))
    .reduce((sum, { reads, writes, others }) => sum + reads + writes + others, 0);
}

function placesOf(ports: readonly Port[]): ReadonlySet<string> {
  return new Set(ports.map(({ endpoint }) => formatEndpoint(endpoint)));
}

function withdraw(
  subsystems: readonly Subsystem[],
  places: ReadonlySet<string>,
  withdrawn: boolean,
): void {
  for (const subsystem of subsystems) {
    for (const place of places) subsystem.withdraw(place, withdrawn);
  }
}

/** Resolves when hosts at these ports that follow ANA have left, or have had their time; at once where there are none. */
export async function sayFarewell(
  subsystems: readonly Subsystem[],
  ports: readonly Port[],
  { clock, runtime }: Pick<Context, 'clock' | 'runtime'>,
): Promise<void> {
  const places = placesOf(ports);
  const leaving = subsystems
    .flatMap(({ controllers }) => [...controllers.values()])
    .filter(({ followsAna, arrival }) => followsAna && places.has(arrival.endpoint));
  const read = leaving.map(({ anaLog }) => anaLog.nextRead());
  withdraw(subsystems, places, true);
  if (leaving.length === 0) return;
  await within(clock, READ_MS_MAX, Promise.all(read));
  const commands = (): number => commandsOf(leaving, runtime.door.queueStatistics());
  const until = clock.now() + REST_MS_MAX;
  let [before, now] = [-1, commands()];
  while (before !== now && clock.now() < until) {
    await sleep(clock, REST_STEP_MS);
    [before, now] = [now, commands()];
  }
}

/** Hosts that were asked to leave may use these ports again. */
export function welcomeBack(subsystems: readonly Subsystem[], ports: readonly Port[]): void {
  withdraw(subsystems, placesOf(ports), false);
}
