/**
 * `nvmeof fio`: runs a job of fio on a namespace: of a running `nvmeof attach --socket`, of a target that it connects to
 * for the length of the run, or on a block device of the kernel.
 */
import { mkdtempSync, rmdirSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import type { Command } from 'commander';
import { messageOf } from '../../../native/common/errors.ts';
import {
  addConnectOptions,
  addQueuesOption,
  connectOptions,
  depthOption,
  hostPort,
  noteQueues,
  nsidOption,
  withController,
} from '../arguments.ts';
import type { ConnectFlags, HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { defaultOptions, findEngine, findJob, runFio, shippedJobs } from '../fio-run.ts';
import { addExamples } from '../help.ts';

export interface FioFlags extends ConnectFlags {
  readonly nsid: number;
  readonly socket?: string;
  readonly device?: string;
  readonly json?: boolean;
}

type Place =
  | { readonly kind: 'socket'; readonly path: string }
  | { readonly kind: 'device'; readonly path: string }
  | { readonly kind: 'target'; readonly address: string; readonly nqn: string };

export interface FioRun {
  readonly place: Place;
  readonly job: string;
  /** What stands behind the job. */
  readonly options: readonly string[];
}

/** Takes the words of the command line apart; how many belong to the place depends on the options. */
export function fioRun(words: readonly string[], flags: FioFlags): FioRun {
  const { socket, device } = flags;
  if (socket !== undefined && device !== undefined) {
    throw new CliError(ExitCode.usage, '--socket and --device exclude each other');
  }
  const path = socket ?? device;
  const [address, nqn, ...rest] = path === undefined ? words : ['', '', ...words];
  const [job, ...options] = rest;
  if (address === undefined || nqn === undefined || job === undefined) {
    throw new CliError(ExitCode.usage, 'a job is missing', {
      remedy: 'nvmeof fio ADDRESS NQN JOB, or nvmeof fio --socket SOCKET JOB',
    });
  }
  if (path === undefined) return { place: { kind: 'target', address, nqn }, job, options };
  const kind = socket === undefined ? 'device' : 'socket';
  return { place: { kind, path }, job, options };
}

/** Words are not parsed by the command line itself, whose error would name the argument. */
function parseAddress(text: string): HostPort {
  try {
    return hostPort(text);
  } catch (cause) {
    throw new CliError(ExitCode.usage, `${text}: ${messageOf(cause)}`, { cause });
  }
}

/** Connects, and serves the namespace to the engine on a socket that nobody else sees. */
async function runOnTarget(
  context: CliContext,
  { address, nqn }: { readonly address: string; readonly nqn: string },
  flags: FioFlags,
  args: (socket: string) => string[],
): Promise<number> {
  const options = connectOptions(parseAddress(address), nqn, flags);
  const folder = mkdtempSync(join(tmpdir(), 'nvmeof-fio-'));
  try {
    return await withController(options, async (controller) => {
      noteQueues(context, controller);
      controller.once('disconnected', (error: Error) => {
        context.note(`nvmeof: ${error.message}`);
      });
      const attachment = controller.attach(flags.nsid);
      const socket = join(folder, 'socket');
      attachment.serveClients(socket);
      try {
        return await runFio(args(socket));
      } finally {
        await attachment.detach();
      }
    });
  } finally {
    rmdirSync(folder);
  }
}

async function fio(context: CliContext, words: readonly string[], flags: FioFlags): Promise<void> {
  const { place, job, options } = fioRun(words, flags);
  const file = findJob(job);
  const output = flags.json === true ? ['--output-format=json'] : [];
  if (place.kind === 'device') {
    const device = resolve(place.path);
    const defaults = defaultOptions('io_uring', device);
    context.exitCode = await runFio([...defaults, '--direct=1', ...output, ...options, file]);
    return;
  }
  const engine = `external:${await findEngine()}`;
  const args = (socket: string): string[] => [
    ...defaultOptions(engine, socket),
    ...output,
    ...options,
    file,
  ];
  context.exitCode = await (place.kind === 'target'
    ? runOnTarget(context, place, flags, args)
    : runFio(args(resolve(place.path))));
}

export const fioCommand: SubCommand = {
  name: 'fio',
  define(command: Command, context) {
    addQueuesOption(addConnectOptions(command))
      .summary('run a job of fio on a namespace')
      .description(
        'Runs fio on a namespace and passes its exit code on. With an address and an NQN it connects for the length ' +
          'of the run; with --socket it uses a running `nvmeof attach --socket`; with --device a block device of the ' +
          'kernel, such as one that `nvme connect` made.\n\n' +
          `JOB is a job file, or one of those that come along: ${shippedJobs().join(', ')}. Job files need to name ` +
          'neither engine nor file. What stands behind `--` goes to fio, for jobs that do not say it themselves; a run ' +
          'ends after 30 seconds unless --runtime says otherwise there. Jobs that write destroy the data of the ' +
          'namespace.\n\n' +
          'The first two ways use an engine that is built once for the installed fio: tools/fio/build-engine.sh.',
      )
      .argument('[words...]', 'ADDRESS[:PORT] NQN JOB, or JOB alone, then options for fio')
      .option('--socket <socket>', 'of a running `nvmeof attach --socket`')
      .option('--device <device>', 'a block device of the kernel, with io_uring and direct I/O')
      .option('--json', "print fio's JSON")
      .addOption(nsidOption())
      .addOption(depthOption())
      .action((words: string[], flags: FioFlags) => fio(context, words, flags));
    addExamples(command, [
      ['connect, run, disconnect', 'nvmeof fio 127.0.0.1 NQN randread-4k-qd32'],
      ['on a running attach', 'nvmeof fio --socket /tmp/disk.sock verify -- --size=1g --numjobs=4'],
      [
        "the kernel's initiator, the same job",
        'nvmeof fio --device /dev/nvme1n1 randread-4k-qd32 -- --runtime=60',
      ],
    ]);
  },
};
