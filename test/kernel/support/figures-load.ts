/**
 * Reads and writes at a fixed rate each, and the longest time without a completion of either: by fio in a guest, by our own
 * host in this process. The two do the same: 4 KiB at random places, 64 of each in flight at most.
 */
import type { MultipathSubsystem } from '../../../initiator/index.ts';
import type { KernelHost } from './kernel-host.ts';
import { pause } from './until.ts';

const RATE = 100;
const DEPTH = 64;
const AREA_MIB = 8;
const BLOCK = 4096;
/** I/O that runs undisturbed before something happens. */
const BEFORE_MS = 3000;
const PLACES = (AREA_MIB << 20) / BLOCK;

export interface Stalls {
  readonly readMs: number;
  readonly writeMs: number;
  /** The longest of either before anything happened: what the machine does by itself. */
  readonly beforeMs: number;
  readonly errors: number;
}

export interface SteadyLoad {
  /** Resolves with what it met when its time is over. */
  readonly ended: Promise<Stalls>;
}

const longestGap = (times: readonly number[]): number =>
  times.reduce((longest, at, index) => Math.max(longest, at - (times[index - 1] ?? at)), 0);

function stallsOf(reads: readonly number[], writes: readonly number[]): Omit<Stalls, 'errors'> {
  const early = (times: readonly number[]): number =>
    longestGap(times.filter((at) => at - (times[0] ?? at) < BEFORE_MS));
  return {
    ...{ readMs: longestGap(reads), writeMs: longestGap(writes) },
    beforeMs: Math.max(early(reads), early(writes)),
  };
}

/** fio's log of latencies has a line per completion, which begins with its time. */
function completions(log: string): number[] {
  return log
    .trim()
    .split('\n')
    .map((line) => Number(line.split(',')[0]))
    .sort((a, b) => a - b);
}

/** Prints how many writes the paths have taken so far. */
const WRITES = `cat /sys/block/nvme*c*n*/stat | awk '{n+=$5} END {print n}'`;

/** Resolves when I/O has run for a moment. */
export async function fioLoad(
  host: KernelHost,
  device: string,
  seconds: number,
): Promise<SteadyLoad> {
  const options =
    `--filename=${device} --ioengine=libaio --direct=1 --bs=${BLOCK} --size=${AREA_MIB}m
    --iodepth=${DEPTH} --rate_iops=${RATE} --time_based --runtime=${seconds} --continue_on_error=all
    --write_lat_log=/tmp/stalls --output-format=json --randrepeat=0`.replaceAll(/\s+/g, ' ');
  const before = Number(await host.guest.run(`rm -f /tmp/stalls*; ${WRITES}`));
  const run = host.guest.run(
    `cd /tmp; fio ${options} --name=reads --rw=randread --name=writes --rw=randwrite`,
    seconds + 120,
  );
  run.catch(() => undefined);
  await host.guest.until(`[ $(${WRITES}) -gt ${before + RATE / 2} ]`);
  const ended = run.then(async (text) => {
    const { jobs } = JSON.parse(text.slice(text.indexOf('{'))) as {
      readonly jobs: readonly { readonly total_err?: number; readonly error: number }[];
    };
    const log = async (job: number): Promise<number[]> =>
      completions(await host.guest.run(`cat /tmp/stalls_lat.${job}.log`));
    return {
      ...stallsOf(await log(1), await log(2)),
      errors: jobs.reduce((sum, { total_err = 0, error }) => sum + (total_err || error), 0),
    };
  });
  ended.catch(() => undefined);
  await pause(BEFORE_MS);
  return { ended };
}

async function issue(
  seconds: number,
  once: (lba: number) => Promise<unknown>,
): Promise<{ readonly times: readonly number[]; readonly errors: number }> {
  const times: number[] = [];
  let errors = 0;
  let inFlight = 0;
  const all: Promise<void>[] = [];
  const begin = performance.now();
  for (let count = 0; performance.now() - begin < seconds * 1000;) {
    const due = ((performance.now() - begin) / 1000) * RATE;
    while (count < due && inFlight < DEPTH) {
      count += 1;
      inFlight += 1;
      const done = once(Math.floor(Math.random() * PLACES)).then(
        () => {
          times.push(performance.now());
        },
        () => {
          errors += 1;
        },
      );
      all.push(
        done.then(() => {
          inFlight -= 1;
        }),
      );
    }
    await pause(1000 / RATE);
  }
  await Promise.all(all);
  return { times, errors };
}

export async function ourLoad(subsystem: MultipathSubsystem, seconds: number): Promise<SteadyLoad> {
  const namespace = subsystem.namespace(1);
  const blocks = BLOCK / namespace.lbaSize;
  const data = new Uint8Array(BLOCK);
  const ended = Promise.all([
    issue(seconds, (place) => namespace.read(place * blocks, blocks)),
    issue(seconds, (place) => namespace.write(place * blocks, data)),
  ]).then(([reads, writes]) => ({
    ...stallsOf(reads.times, writes.times),
    errors: reads.errors + writes.errors,
  }));
  ended.catch(() => undefined);
  await pause(BEFORE_MS);
  return { ended };
}
