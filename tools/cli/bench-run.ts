/**
 * One bench run on a connected controller: from fio's words to native's job, and from its result to the report that
 * the table and the JSON are made of. The demo runs the same.
 */
import type { BenchResult, Controller } from '../../initiator/index.ts';
import { CliError } from './context.ts';
import { ExitCode } from './exit-codes.ts';
import type { BenchReport } from './fio-json.ts';
import type { BenchRow } from './tables.ts';

export const PATTERNS = ['read', 'write', 'randread', 'randwrite', 'rw', 'randrw'] as const;
export type Pattern = (typeof PATTERNS)[number];

export interface BenchJob {
  readonly nsid: number;
  readonly pattern: Pattern;
  /** Percentage of reads in a mix. */
  readonly readPercent: number;
  readonly blockBytes: number;
  readonly queueDepth: number;
  readonly runtimeMs: number;
  readonly warmupMs: number;
  /** 0: stop by time. */
  readonly commandCount: bigint;
  readonly verify: boolean;
  readonly bufferBytes: number;
  /** Bytes of the namespace from its start; undefined: all. */
  readonly regionBytes: bigint | undefined;
  readonly seed: bigint;
}

export interface BenchOutcome {
  readonly result: BenchResult;
  readonly report: BenchReport;
  readonly rows: readonly BenchRow[];
}

const WRITES: ReadonlySet<Pattern> = new Set(['write', 'randwrite', 'rw', 'randrw']);

function blocksOfRegion(controller: Controller, job: BenchJob): bigint {
  const namespace = controller.namespace(job.nsid);
  const size = BigInt(namespace.lbaSize);
  if (job.blockBytes % namespace.lbaSize !== 0 || job.blockBytes === 0) {
    throw new CliError(
      ExitCode.usage,
      `a block size of ${job.blockBytes} bytes is no multiple of the namespace's ${namespace.lbaSize}`,
    );
  }
  if (job.blockBytes > controller.transferBytesMax) {
    throw new CliError(
      ExitCode.usage,
      `a block size of ${job.blockBytes} bytes is more than the ${controller.transferBytesMax} ` +
        `one command may carry`,
    );
  }
  const region =
    job.regionBytes === undefined || job.regionBytes > namespace.bytes
      ? namespace.bytes
      : job.regionBytes;
  const blocks = (region / BigInt(job.blockBytes)) * (BigInt(job.blockBytes) / size);
  if (blocks === 0n) {
    throw new CliError(ExitCode.usage, `the region of ${region} bytes holds no block`);
  }
  if (WRITES.has(job.pattern) && namespace.writeProtected) {
    throw new CliError(ExitCode.failed, `namespace ${job.nsid} is write protected`);
  }
  return blocks;
}

export async function runBench(controller: Controller, job: BenchJob): Promise<BenchOutcome> {
  const lbaCount = blocksOfRegion(controller, job);
  const usageBefore = process.resourceUsage();
  const startedAt = process.hrtime.bigint();
  const result = await controller.bench({
    nsid: job.nsid,
    pattern: job.pattern,
    readPercent: job.readPercent,
    blockBytes: job.blockBytes,
    queueDepth: job.queueDepth,
    firstLba: 0n,
    lbaCount,
    runtimeMs: job.runtimeMs,
    commandCount: job.commandCount,
    warmupMs: job.warmupMs,
    verify: job.verify,
    bufferArenaBytes: job.bufferBytes,
    seed: job.seed,
  });
  const elapsedSeconds = Number(process.hrtime.bigint() - startedAt) / 1e9;
  const usage = process.resourceUsage();
  const report: BenchReport = {
    jobName: controller.nqn,
    options: fioOptions(job),
    read: result.read,
    write: result.write,
    verifyErrors: result.verifyErrors,
    userSeconds: (usage.userCPUTime - usageBefore.userCPUTime) / 1e6,
    systemSeconds: (usage.systemCPUTime - usageBefore.systemCPUTime) / 1e6,
    elapsedSeconds,
    voluntarySwitches: usage.voluntaryContextSwitches - usageBefore.voluntaryContextSwitches,
    involuntarySwitches: usage.involuntaryContextSwitches - usageBefore.involuntaryContextSwitches,
    majorFaults: usage.majorPageFault - usageBefore.majorPageFault,
    minorFaults: usage.minorPageFault - usageBefore.minorPageFault,
    time: new Date(),
  };
  return { result, report, rows: benchRows(job, result) };
}

function fioOptions(job: BenchJob): Record<string, string> {
  return {
    name: 'nvmeof',
    rw: job.pattern,
    bs: String(job.blockBytes),
    iodepth: String(job.queueDepth),
    ...(job.runtimeMs > 0 ? { runtime: String(job.runtimeMs / 1000) } : {}),
    ...(job.verify ? { verify: 'pattern' } : {}),
  };
}

function benchRows(job: BenchJob, result: BenchResult): BenchRow[] {
  const sides = [
    ['read', result.read],
    ['write', result.write],
  ] as const;
  return sides
    .filter(([, side]) => side.commands > 0n || side.errors > 0n)
    .map(([name, side]) => ({
      name: `${job.pattern.startsWith('rand') ? 'random ' : ''}${name}, QD ${job.queueDepth}`,
      side,
      cpuPercent:
        side.runtimeNs === 0n
          ? []
          : result.reactorCpuSeconds.map((seconds) => (seconds * 1e11) / Number(side.runtimeNs)),
    }));
}

/** The run is worth nothing when a command failed or data was wrong, or the connection did not last. */
export async function checkOutcome(
  controller: Controller,
  { result }: BenchOutcome,
): Promise<void> {
  if (result.verifyErrors > 0n) {
    throw new CliError(
      ExitCode.dataMismatch,
      `${result.verifyErrors} reads returned wrong data: ${result.firstError}`,
    );
  }
  const errors = result.read.errors + result.write.errors;
  if (errors > 0n) {
    // Rejects with what became of the connection, when it is that which failed.
    await controller.identify();
    const code = result.overdue > 0n ? ExitCode.disconnected : ExitCode.nvmeStatus;
    throw new CliError(code, `${errors} commands failed: ${result.firstError}`);
  }
  if (result.read.commands + result.write.commands === 0n) {
    throw new CliError(
      ExitCode.failed,
      `no command was finished in the time${result.firstError === '' ? '' : `: ${result.firstError}`}`,
    );
  }
}
