/**
 * `nvmeof failover-test`: starts targets of its own, loads them with reads and writes that are all verified, makes faults
 * happen to them, and says whether I/O kept the bounds of the scenario.
 */
import { Option } from 'commander';
import { systemClock } from '../../../native/common/clock.ts';
import { NvmeofError } from '../../../native/common/errors.ts';
import { unfit } from '../../failover/inject.ts';
import { jsonReport, passed, terminalReport, writeReport } from '../../failover/report.ts';
import { runScenario } from '../../failover/run.ts';
import type { RunOutcome } from '../../failover/run.ts';
import { loadScenario, parseScenario } from '../../failover/scenario.ts';
import type { Scenario } from '../../failover/scenario.ts';
import { SCENARIOS } from '../../failover/scenarios.ts';
import { HOST_ABILITIES, withTestBed } from '../../failover/test-bed.ts';
import { byteCount, milliseconds, wholeNumber } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { untilSignal } from '../signals.ts';
import { properties } from '../tables.ts';

interface Flags {
  readonly scenario?: readonly string[];
  readonly list?: boolean;
  readonly rate: number;
  readonly max?: boolean;
  readonly readPercent: number;
  readonly bs: number;
  readonly size: number;
  readonly qd: number;
  readonly seed?: number;
  readonly reconnectDelay: number;
  readonly keepAlive: number;
  readonly report?: string;
  readonly json?: boolean;
}

/** Those that this initiator can pass. */
export function usableScenarios(): Scenario[] {
  return SCENARIOS.map((each) => parseScenario(each, `scenario ${each.name}`)).filter(
    (scenario) => unfit(scenario, HOST_ABILITIES) === undefined,
  );
}

function list(context: CliContext): void {
  const rows = usableScenarios().map(({ name, about, duration, faults }) => {
    const stall = Math.max(...faults.map(({ bounds }) => bounds.stallMs ?? 0));
    return [name, `${about} (takes ${duration / 1000} s; stall of ${stall} ms at most)`] as const;
  });
  context.print(properties(rows));
}

async function chosen(names: readonly string[] | undefined): Promise<Scenario[]> {
  if (names === undefined) return usableScenarios();
  const scenarios: Scenario[] = [];
  for (const name of names) {
    const scenario = await loadScenario(name);
    const problem = unfit(scenario, HOST_ABILITIES);
    if (problem !== undefined) {
      throw new CliError(ExitCode.usage, `scenario ${scenario.name}: ${problem}`, {
        remedy: 'nvmeof failover-test --list shows what can be tested',
      });
    }
    scenarios.push(scenario);
  }
  return scenarios;
}

/** Ctrl-C ends the run, and with it what was started for it. */
function abortedBySignal(): AbortSignal {
  const ended = new AbortController();
  void untilSignal().then((name) => {
    ended.abort(new CliError(ExitCode.failed, `ended by ${name}`));
  });
  return ended.signal;
}

async function failoverTest(context: CliContext, flags: Flags): Promise<void> {
  if (flags.list === true) {
    list(context);
    return;
  }
  const seed = flags.seed ?? (Date.now() >>> 0) % 1_000_000;
  const load = {
    ...(flags.max === true ? {} : { rate: flags.rate }),
    ...{ readPercent: flags.readPercent, requestBytes: flags.bs, areaBytes: flags.size },
    ...{ depth: flags.qd, seed },
  };
  const timers = { reconnectDelayMs: flags.reconnectDelay, keepAliveMs: flags.keepAlive };
  const note = (text: string): void => {
    if (flags.json !== true) context.note(text);
  };
  note(`seed ${seed}`);
  const outcomes: RunOutcome[] = [];
  const signal = abortedBySignal();
  for (const scenario of await chosen(flags.scenario)) {
    // Each has targets of its own: what one leaves behind must not be the next one's trouble.
    const outcome = await withTestBed({ scenario, load, timers }, (bed) =>
      runScenario({ ...bed, scenario, load, clock: systemClock, signal, note }),
    ).catch((error: unknown) => {
      if (error instanceof RangeError) throw new CliError(ExitCode.usage, error.message);
      throw error;
    });
    outcomes.push(outcome);
    if (flags.json !== true) context.print(terminalReport(outcome));
  }
  if (flags.json === true) context.printJson(jsonReport(outcomes));
  if (flags.report !== undefined) {
    const files = await writeReport(flags.report, outcomes);
    note(`report: ${files.join(', ')}`);
  }
  finish(outcomes);
}

function finish(outcomes: readonly RunOutcome[]): void {
  if (passed(outcomes)) return;
  if (outcomes.some(({ record }) => record.mismatches > 0)) {
    throw new CliError(ExitCode.dataMismatch, 'data read back is not the data written');
  }
  const failed = outcomes.filter(({ result }) => !result.passed);
  const names = failed.map(({ record }) => record.scenario.name).join(', ');
  throw new NvmeofError('FAILOVER_TEST_FAILED', `the bounds were not kept: ${names}`);
}

const collect = (text: string, all: readonly string[] = []): readonly string[] => [...all, text];

export const failoverTestCommand: SubCommand = {
  name: 'failover-test',
  define(command, context) {
    command
      .summary('test what I/O suffers when packets and targets fail')
      .description(
        'Starts two targets of its own on loopback that share a disk, connects to both, reads and writes at a fixed rate, makes faults happen, and measures ' +
          'the longest stall, the errors, and whether every block holds what was acknowledged. Needs no root.',
      )
      .option(
        '--scenario <what>',
        'name of --list, file, or JSON in place; repeat for more (default: all of the list)',
        collect,
      )
      .option('--list', 'show the scenarios')
      .option('--rate <n>', 'requests a second', wholeNumber(10, 200_000), 1000)
      .addOption(new Option('--max', 'as fast as answers come').conflicts('rate'))
      .option('--read-percent <n>', 'reads among the requests', wholeNumber(0, 100), 50)
      .option('--bs <size>', 'bytes of a request', byteCount, 4096)
      .addOption(
        new Option('--size <size>', 'area that is read and written')
          .argParser(byteCount)
          .default(16 << 20, '16MiB'),
      )
      .option('--qd <n>', 'requests in flight, at most', wholeNumber(1, 1024), 64)
      .option('--seed <n>', 'of places, data and faults', wholeNumber(0, 0xffff_ffff))
      .addOption(
        new Option('--reconnect-delay <time>', 'of the host, between attempts to get a path back')
          .argParser(milliseconds)
          .default(1000, '1s'),
      )
      .addOption(
        new Option('--keep-alive <time>', 'keep alive timeout of the host')
          .argParser(milliseconds)
          .default(5000, '5s'),
      )
      .option('--report <folder>', 'write failover.json, failover.md and failover.html there')
      .option('--json', 'print the result as JSON')
      .action((flags: Flags) => failoverTest(context, flags));
    addExamples(command, [
      ['everything that can be tested here', 'nvmeof failover-test --report failover-report'],
      ['a target that stands still', 'nvmeof failover-test --scenario pause --rate 5000'],
      [
        'a fault of your own',
        `nvmeof failover-test --scenario '{"name":"mine","duration":"5s","faults":[{"kind":"loss","at":"2s","for":"2s","drop":0.05,"bounds":{"stallMs":1000}}]}'`,
      ],
    ]);
  },
};
