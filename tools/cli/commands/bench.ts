/** `nvmeof bench ADDRESS NQN`: native load in fio's words; table for people, fio's JSON for its tools. */
import { Option } from 'commander';
import { PATTERNS, checkOutcome, runBench } from '../bench-run.ts';
import type { BenchJob, Pattern } from '../bench-run.ts';
import {
  addConnectOptions,
  addQueuesOption,
  byteCount,
  connectOptions,
  hostPort,
  noteQueues,
  nsidOption,
  seconds,
  size,
  wholeNumber,
  withController,
} from '../arguments.ts';
import type { ConnectFlags, HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { fioJson } from '../fio-json.ts';
import { addExamples } from '../help.ts';
import { benchTable } from '../tables.ts';

interface Flags extends ConnectFlags {
  readonly nsid: number;
  readonly rw: Pattern;
  readonly rwmixread: number;
  readonly bs: number;
  readonly qd: number;
  readonly runtime?: number;
  readonly number?: number;
  readonly warmup: number;
  readonly verify?: boolean;
  readonly buffers: number;
  readonly size?: bigint;
  readonly seed?: number;
  readonly json?: boolean;
}

const RUNTIME_MS = 5000;

export function jobOf(flags: Flags): BenchJob {
  const commandCount = BigInt(flags.number ?? 0);
  const runtimeMs = flags.runtime ?? (commandCount > 0n ? 0 : RUNTIME_MS);
  if (runtimeMs === 0 && commandCount === 0n) {
    throw new CliError(ExitCode.usage, 'a run needs --runtime or --number');
  }
  return {
    nsid: flags.nsid,
    pattern: flags.rw,
    readPercent: flags.rwmixread,
    blockBytes: flags.bs,
    queueDepth: flags.qd,
    runtimeMs,
    warmupMs: flags.warmup,
    commandCount,
    verify: flags.verify ?? false,
    bufferBytes: Math.max(flags.buffers, flags.bs),
    regionBytes: flags.size,
    seed: BigInt(flags.seed ?? Date.now()),
  };
}

async function bench(
  context: CliContext,
  target: HostPort,
  nqn: string,
  flags: Flags,
): Promise<void> {
  const job = jobOf(flags);
  // A submission queue holds one entry less than it has.
  const depth = Math.max(flags.qd + 1, 2);
  const options = connectOptions(target, nqn, { ...flags, depth });
  await withController(options, async (controller) => {
    noteQueues(context, controller);
    const shortest = Math.min(...controller.queues.map((queue) => queue.entries));
    if (shortest < depth) {
      context.note(`The target grants queues of ${shortest} entries: commands beyond wait here.`);
    }
    const outcome = await runBench(controller, job);
    if (flags.json === true) {
      const nvmeof = { counters: controller.counters() };
      context.printJson({ ...fioJson(outcome.report), nvmeof });
    } else context.print(benchTable(outcome.rows));
    await checkOutcome(controller, outcome);
  });
}

export const benchCommand: SubCommand = {
  name: 'bench',
  define(command, context) {
    addQueuesOption(addConnectOptions(command))
      .summary('measure IOPS, bandwidth and latency')
      .description(
        'Runs a load on a namespace with the native load generator and prints what it reached. ' +
          'Write patterns destroy the data of the namespace.',
      )
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .addOption(nsidOption())
      .addOption(
        new Option('--rw <pattern>', 'what to do').choices([...PATTERNS]).default('randread'),
      )
      .option('--rwmixread <percent>', 'reads in rw and randrw', wholeNumber(0, 100), 50)
      .option('--bs <size>', 'bytes of a command', byteCount, 4096)
      .option('--qd <n>', 'commands in flight on each queue', wholeNumber(1, 1023), 32)
      .option('--runtime <time>', 'seconds, or with a unit (default 5)', seconds)
      .option('--number <n>', 'commands, instead of or besides a time', wholeNumber(1))
      .option('--warmup <time>', 'run this long before measuring', seconds, 0)
      .option('--verify', 'fill writes with a pattern and check every read against it')
      .addOption(
        new Option('--buffers <size>', 'memory that the transfers are spread over')
          .argParser(byteCount)
          .default(256 * 1024 * 1024, '256MiB'),
      )
      .option('--size <size>', 'use this much of the namespace (default: all)', size)
      .option('--seed <n>', 'of the random addresses', wholeNumber(0))
      .option('--json', "print fio's JSON layout, and counters under nvmeof")
      .action((target: HostPort, nqn: string, flags: Flags) => bench(context, target, nqn, flags));
    addExamples(command, [
      [
        '4 KiB random reads at queue depth 32',
        'nvmeof bench 127.0.0.1 NQN --rw randread --bs 4k --qd 32',
      ],
      ['latency', 'nvmeof bench 127.0.0.1 NQN --qd 1 --cores 1 --poll'],
      ['data checked', 'nvmeof bench 127.0.0.1 NQN --nsid 2 --rw randrw --verify --runtime 60'],
    ]);
  },
};
