/**
 * `nvmeof failover-test`: loads targets of its own, or some that exist already, with reads and writes that are all verified,
 * makes faults happen to them, and says whether I/O kept the bounds of the scenario.
 */
import { Option } from 'commander';
import type { Command } from 'commander';
import { systemClock } from '../../../native/common/clock.ts';
import { NvmeofError } from '../../../native/common/errors.ts';
import { formatSize } from '../../../native/common/size.ts';
import type { PathPolicy } from '../../../initiator/index.ts';
import {
  describeNamespace,
  remoteTargets,
  withExistingTargets,
} from '../../failover/existing-bed.ts';
import type { ExistingOptions } from '../../failover/existing-bed.ts';
import { scenarioRefusal } from '../../failover/faulty-target.ts';
import { HostFaults } from '../../failover/host-faults.ts';
import {
  jsonReport,
  passed,
  terminalReport,
  terminalSpread,
  writeReport,
} from '../../failover/report.ts';
import { tryNetworkNamespaces } from '../../failover/network-namespace.ts';
import { runScenario } from '../../failover/run.ts';
import type { RunOptions, RunOutcome } from '../../failover/run.ts';
import { loadScenario, parseScenario } from '../../failover/scenario.ts';
import type { Scenario } from '../../failover/scenario.ts';
import { SCENARIOS } from '../../failover/scenarios.ts';
import { withTestBed } from '../../failover/test-bed.ts';
import type { TestBed } from '../../failover/test-bed.ts';
import type { LoadOptions } from '../../failover/verified-load.ts';
import { byteCount, hostPort, milliseconds, wholeNumber } from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
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
  readonly repeat: number;
  /** Absent: two, or as many as a scenario names. */
  readonly targets?: number;
  readonly network: 'loopback' | 'netns';
  readonly policy: PathPolicy;
  readonly path?: readonly HostPort[];
  readonly nqn?: string;
  readonly nsid?: number;
  readonly control?: readonly string[];
  readonly destroyData?: boolean;
  readonly reconnectDelay: number;
  readonly keepAlive: number;
  readonly report?: string;
  readonly json?: boolean;
}

export function builtIn(): Scenario[] {
  return SCENARIOS.map((each) => parseScenario(each, `scenario ${each.name}`));
}

function list(context: CliContext): void {
  const rows = builtIn().map(({ name, about, duration, faults }) => {
    const stall = Math.max(...faults.map(({ bounds }) => bounds.stallMs ?? 0));
    return [name, `${about} (takes ${duration / 1000} s; stall of ${stall} ms at most)`] as const;
  });
  context.print(properties(rows));
}

type Note = (text: string) => void;

type Refusal = (scenario: Scenario) => string | undefined;

/** Why a scenario cannot be run where the flags say. */
async function refusals(flags: Flags, existing: ExistingOptions | undefined): Promise<Refusal> {
  if (existing) {
    const targets = remoteTargets(existing, new HostFaults(0));
    return (scenario) => scenarioRefusal(scenario, targets);
  }
  if (flags.network === 'loopback') return () => undefined;
  const refusal = await tryNetworkNamespaces();
  return ({ faults }) => {
    const reasons = faults.flatMap(({ kind }) => refusal(kind) ?? []);
    return reasons[0];
  };
}

/** Those that were named, or all that can be made to happen. */
async function chosen(
  flags: Flags,
  existing: ExistingOptions | undefined,
  note: Note,
): Promise<Scenario[]> {
  const { scenario: names } = flags;
  const all = names === undefined ? builtIn() : await Promise.all(names.map(loadScenario));
  const refusal = await refusals(flags, existing);
  return all.filter((scenario) => {
    const problem = refusal(scenario);
    if (problem === undefined) return true;
    if (names !== undefined) {
      throw new CliError(ExitCode.usage, `scenario ${scenario.name}: ${problem}`);
    }
    note(`${scenario.name} is left out: ${problem}`);
    return false;
  });
}

/** Undefined: targets are started for the test. */
function existingTargets(flags: Flags): ExistingOptions | undefined {
  const { path: paths, nqn, nsid, control: controls = [] } = flags;
  if (paths === undefined) {
    const alone = (['nqn', 'nsid', 'control', 'destroyData'] as const).find(
      (each) => flags[each] !== undefined,
    );
    if (alone === undefined) return undefined;
    const name = alone === 'destroyData' ? 'destroy-data' : alone;
    throw new CliError(
      ExitCode.usage,
      `--${name} is of targets that exist already: name them with --path`,
    );
  }
  if (nqn === undefined) throw new CliError(ExitCode.usage, '--path needs --nqn, the subsystem');
  if (flags.targets !== undefined) {
    throw new CliError(
      ExitCode.usage,
      '--targets is of targets that the test starts; --path names others',
    );
  }
  if (flags.network !== 'loopback') {
    throw new CliError(ExitCode.usage, '--network is of targets that the test starts');
  }
  if (controls.length > paths.length) {
    throw new CliError(
      ExitCode.usage,
      `there are ${controls.length} of --control, and ${paths.length} paths`,
      {
        remedy: 'give a control socket for each path, in the order of the paths',
      },
    );
  }
  return { paths, nqn, nsid: nsid ?? 1, controls };
}

/** What is on the namespace is lost: that must have been said. */
async function requireConsent(existing: ExistingOptions, flags: Flags, note: Note): Promise<void> {
  const what = await describeNamespace(existing);
  if (flags.destroyData === true) {
    note(`overwriting the first ${formatSize(flags.size)} of ${what}`);
    return;
  }
  throw new CliError(
    ExitCode.usage,
    `the test overwrites the first ${formatSize(flags.size)} of ${what}`,
    { remedy: 'give --destroy-data when nobody needs what is there' },
  );
}

/** Ctrl-C ends the run, and with it what was started for it. */
function abortedBySignal(): AbortSignal {
  const ended = new AbortController();
  void untilSignal().then((name) => {
    ended.abort(new CliError(ExitCode.failed, `ended by ${name}`));
  });
  return ended.signal;
}

/** Each run has a bed of its own: what one leaves behind must not be the next one's trouble. */
async function runOnce(
  flags: Flags,
  existing: ExistingOptions | undefined,
  scenario: Scenario,
  load: LoadOptions,
  watch: Pick<RunOptions, 'signal' | 'note'>,
): Promise<RunOutcome> {
  const settings = {
    ...{ reconnectDelayMs: flags.reconnectDelay, keepAliveMs: flags.keepAlive },
    policy: flags.policy,
  };
  const run = (bed: TestBed): Promise<RunOutcome> =>
    runScenario({ ...bed, ...watch, scenario, load, clock: systemClock });
  try {
    return existing
      ? await withExistingTargets(existing, { ...settings, seed: load.seed }, run)
      : await withTestBed(
          {
            ...{ scenario, load, settings, targets: flags.targets ?? TARGETS },
            networkNamespaces: flags.network === 'netns',
          },
          run,
        );
  } catch (error) {
    if (error instanceof RangeError) throw new CliError(ExitCode.usage, error.message);
    throw error;
  }
}

async function failoverTest(context: CliContext, flags: Flags): Promise<void> {
  if (flags.list === true) {
    list(context);
    return;
  }
  const seed = flags.seed ?? (Date.now() >>> 0) % 1_000_000;
  const common = {
    ...(flags.max === true ? {} : { rate: flags.rate }),
    ...{ readPercent: flags.readPercent, requestBytes: flags.bs, areaBytes: flags.size },
    depth: flags.qd,
  };
  const note = (text: string): void => {
    if (flags.json !== true) context.note(text);
  };
  const existing = existingTargets(flags);
  const scenarios = await chosen(flags, existing, note);
  if (scenarios.length === 0) {
    throw new CliError(ExitCode.usage, 'none of the scenarios can be run on these targets');
  }
  if (existing) await requireConsent(existing, flags, note);
  note(`seed ${seed}`);
  const outcomes: RunOutcome[] = [];
  const signal = abortedBySignal();
  for (const scenario of scenarios) {
    const own: RunOutcome[] = [];
    for (let run = 0; run < flags.repeat; run++) {
      const load = { ...common, seed: (seed + run) >>> 0 };
      const outcome = await runOnce(flags, existing, scenario, load, { signal, note });
      own.push(outcome);
      if (flags.json !== true) context.print(terminalReport(outcome));
    }
    outcomes.push(...own);
    if (flags.json !== true && own.length > 1) context.print(terminalSpread(own));
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

const TARGETS = 2;

const morePaths = (text: string, all: readonly HostPort[] = []): readonly HostPort[] => [
  ...all,
  ...text.split(',').map(hostPort),
];

const collect = (text: string, all: readonly string[] = []): readonly string[] => [...all, text];

/** Of targets that the test does not start. */
function addExistingOptions(command: Command): void {
  command
    .option(
      '--path <address[:port],…>',
      'no targets of its own: paths to a subsystem that exists, whose data are overwritten',
      morePaths,
    )
    .option('--nqn <nqn>', 'of that subsystem')
    .option(
      '--nsid <n>',
      'of the namespace that is overwritten (default: 1)',
      wholeNumber(1, 0xffff_fffe),
    )
    .option(
      '--control <socket>',
      "control socket of a path's target, for what only the target can do; repeat in the order of the paths",
      collect,
    )
    .option('--destroy-data', 'what is on that namespace may be lost; --path needs it');
}

/** Of targets that the test starts. */
function addOwnOptions(command: Command): void {
  command
    .option('--targets <n>', 'targets that are started, at least (default: 2)', wholeNumber(1, 4))
    .addOption(
      new Option(
        '--network <kind>',
        'where targets that are started run: on loopback, or each in a network namespace, where packets meet the faults in ' +
          "the kernel's traffic control (needs root)",
      )
        .choices(['loopback', 'netns'])
        .default('loopback'),
    )
    .addOption(
      new Option('--policy <policy>', 'how the host chooses among paths')
        .choices(['round-robin', 'queue-depth'])
        .default('round-robin'),
    );
}

export const failoverTestCommand: SubCommand = {
  name: 'failover-test',
  define(command, context) {
    command
      .summary('test what I/O suffers when packets and targets fail')
      .description(
        'Starts two targets of its own on loopback that share a disk, connects to both, reads and writes at a fixed rate, makes faults happen, and measures ' +
          'the longest stall, the errors, and whether every block holds what was acknowledged. Needs no root. With --path it does that to a ' +
          'subsystem that exists already, and OVERWRITES what is on its namespace.',
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
      .option(
        '--repeat <n>',
        'runs of each scenario: the worst and the median of each figure',
        wholeNumber(1, 1000),
        1,
      )
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
    addOwnOptions(command);
    addExistingOptions(command);
    addExamples(command, [
      ['everything that can be tested here', 'nvmeof failover-test --report failover-report'],
      ['a target that stands still', 'nvmeof failover-test --scenario pause --rate 5000'],
      ['the worst of thirty', 'nvmeof failover-test --scenario kill --repeat 30'],
      [
        "a black hole in the kernel's network",
        'sudo nvmeof failover-test --network netns --scenario blackhole',
      ],
      [
        'targets that exist already, whose data nobody needs',
        'nvmeof failover-test --path 192.0.2.1,192.0.2.2 --nqn NQN --destroy-data --scenario gap',
      ],
      [
        'a fault of your own',
        `nvmeof failover-test --scenario '{"name":"mine","duration":"5s","faults":[{"kind":"loss","at":"2s","for":"2s","drop":0.05,"bounds":{"stallMs":1000}}]}'`,
      ],
    ]);
  },
};
