/** `nvmeof target` and `nvmeof bench`, each a process of its own, as people run them. */
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { systemSource } from '../../initiator/source-device.ts';
import { METRICS_PORT } from '../cli/arguments.ts';
import { fetchStatistics } from '../cli/statistics/snapshot.ts';
import { TargetProcess } from '../target-process.ts';
import { fioFigures } from './fio.ts';
import type { Figures, Subject } from './figures.ts';
import { run, SLACK_SECONDS } from './programs.ts';

const CLI = fileURLToPath(new URL('../cli/bin.js', import.meta.url));
const NQN = 'nqn.2026-11.io.nvmeof:bench';
export const NAMESPACE_BYTES = 256 << 20;
const WARM_UP_SECONDS = 0.5;
const WRONG_REACTOR = 'soft.rx.wrong_reactor';

const extras = z.object({
  nvmeof: z.object({ counters: z.record(z.string(), z.number()) }),
  jobs: z.tuple([z.object({ usr_cpu: z.number(), sys_cpu: z.number(), job_runtime: z.number() })]),
});

/** What the target exports and how. */
export interface TargetShape {
  /** As of `nvmeof target --export`, in order of NSIDs. */
  readonly exports: readonly string[];
  readonly cores: readonly number[];
  readonly options?: readonly string[];
}

export interface Load {
  readonly nsid?: number;
  readonly rw?: 'randread' | 'randwrite' | 'read' | 'write' | 'randrw';
  readonly bytes?: number;
  readonly depth: number;
  readonly queues?: number;
  readonly cores: readonly number[];
  /** More options of `nvmeof bench`. */
  readonly options?: readonly string[];
}

/** Targets by their shape: each runs from its first use to the end. */
export class Targets {
  readonly #running = new Map<string, Promise<RunningTarget>>();

  get(shape: TargetShape): Promise<RunningTarget> {
    const key = JSON.stringify(shape);
    let running = this.#running.get(key);
    if (!running) {
      running = RunningTarget.start(shape);
      this.#running.set(key, running);
    }
    return running;
  }

  async end(): Promise<void> {
    const all = await Promise.allSettled(this.#running.values());
    for (const started of all) {
      if (started.status === 'fulfilled') await started.value.process.kill();
    }
  }
}

/** What a target counted so far, and used. */
interface TargetCounts {
  readonly cpuSeconds: number;
  readonly wrongReactor: number;
}

export class RunningTarget {
  readonly process: TargetProcess;
  readonly address: string;
  readonly nqn = NQN;
  readonly reactors: number;

  private constructor(process: TargetProcess, address: string, reactors: number) {
    this.process = process;
    this.address = address;
    this.reactors = reactors;
  }

  static async start({ exports, cores, options = [] }: TargetShape): Promise<RunningTarget> {
    const address = systemSource.randomLoopback();
    const process = await TargetProcess.start([
      ...['--nqn', NQN, '--listen', address, '--cores', cores.join(',')],
      // Beside it on an address that is its own.
      ...['--metrics', address],
      ...exports.flatMap((what) => ['--export', what]),
      ...options,
    ]);
    return new RunningTarget(process, address, cores.length);
  }

  async counts(): Promise<TargetCounts> {
    const { counters } = await fetchStatistics({ address: this.address, port: METRICS_PORT });
    return {
      cpuSeconds: this.process.cpuSeconds(),
      wrongReactor: counters[WRONG_REACTOR] ?? 0,
    };
  }
}

function benchArguments(target: RunningTarget, load: Load, seconds: number): string[] {
  const { nsid = 1, rw = 'randread', bytes = 4096, depth, queues, cores, options = [] } = load;
  return [
    ...['bench', target.address, target.nqn, '--nsid', `${nsid}`, '--rw', rw, '--bs', `${bytes}`],
    ...['--qd', `${depth}`, '--cores', cores.join(','), '--runtime', `${seconds}`],
    ...['--warmup', `${WARM_UP_SECONDS}`, '--json'],
    ...(queues === undefined ? [] : ['--queues', `${queues}`]),
    ...options,
  ];
}

export async function runLoad(
  target: RunningTarget,
  load: Load,
  seconds: number,
): Promise<Figures> {
  const before = await target.counts();
  const began = performance.now();
  const text = await run(
    process.execPath,
    [CLI, ...benchArguments(target, load, seconds)],
    seconds + SLACK_SECONDS,
  );
  // The target works from connect to disconnect, but only the load is worth mentioning.
  const after = await target.counts();
  const elapsed = (performance.now() - began) / 1000;
  const busy = Math.min(after.cpuSeconds - before.cpuSeconds, elapsed * target.reactors);
  const { commands, ...figures } = fioFigures(text);
  const { nvmeof, jobs } = extras.parse(JSON.parse(text));
  const [job] = jobs;
  const hostSeconds = ((job.usr_cpu + job.sys_cpu) / 100) * (job.job_runtime / 1000);
  const loaded = (seconds + WARM_UP_SECONDS) / seconds;
  return {
    ...figures,
    hostCpu: (hostSeconds / (commands * loaded)) * 1e6,
    targetCpu: (busy / (commands * loaded)) * 1e6,
    iopsPerCpu: (commands * loaded) / busy,
    retransmits: nvmeof.counters['soft.requester.retransmits'] ?? 0,
    wrongReactor: (nvmeof.counters[WRONG_REACTOR] ?? 0) + after.wrongReactor - before.wrongReactor,
  };
}

export function ours(name: string, targets: Targets, shape: TargetShape, load: Load): Subject {
  return {
    name,
    measure: async (seconds) => runLoad(await targets.get(shape), load, seconds),
  };
}
