/**
 * `npm run demo [-- PATH]`: the whole product in one go. A target process exports an image and a scratch namespace on a
 * loopback address; this process is the initiator, on another one. Every step says what it did; the first that fails
 * is named, everything is shut down, and the exit code is 1.
 */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Command, CommanderError, Option } from 'commander';
import type { Controller } from '../../initiator/index.ts';
import { messageOf } from '../../native/common/errors.ts';
import { formatSize } from '../../native/common/size.ts';
import { hostPort, seconds } from '../cli/arguments.ts';
import type { HostPort } from '../cli/arguments.ts';
import { BENCH_HEAD, plainTable } from '../cli/tables.ts';
import { flipByte, givenImage, makeImage, runTool, sha256OfFile } from './image.ts';
import type { Image } from './image.ts';
import {
  RANDOM_TEXT,
  connected,
  copyNamespace,
  findSubsystem,
  measure,
  readRandom,
  writeRandom,
} from './steps.ts';
import type { Options } from './steps.ts';
import { runProgram } from '../run-program.ts';
import { TargetProcess } from '../target-process.ts';

interface Flags {
  readonly address?: HostPort;
  readonly seconds?: number;
  readonly pcap?: string;
  readonly corrupt?: boolean;
  readonly keep?: boolean;
}

const NQN = 'nqn.2026-11.io.nvmeof:demo';
const MEASURE_MS = 5000;
const { stdin, stdout, stderr } = process;
const streams = { stdin, stdout, stderr };

/** Ends the demo; `step` says where. */
class StepError extends Error {
  override readonly name = 'StepError';
}

async function step<T>(
  name: string,
  run: () => Promise<T>,
  say: (result: T) => string,
): Promise<T> {
  stdout.write(`${name} … `);
  const startedAt = performance.now();
  try {
    const result = await run();
    const text = say(result);
    const time = ((performance.now() - startedAt) / 1000).toFixed(1);
    stdout.write(`${text === '' ? 'ok' : text} (${time} s)\n`);
    return result;
  } catch (error) {
    stdout.write('FAILED\n');
    throw new StepError(`${name}: ${messageOf(error)}`, { cause: error });
  }
}

function expectSame(actual: string, expected: string, what: string): string {
  if (actual !== expected) throw new Error(`${what}: SHA-256 ${actual}, expected ${expected}`);
  return `SHA-256 ${actual.slice(0, 16)}…`;
}

async function copyAndCompare(
  controller: Controller,
  image: Image,
  folder: string,
  flags: Flags,
): Promise<void> {
  const path = join(folder, 'copy.img');
  const copy = await step(
    'copy the namespace out',
    () => copyNamespace(controller, path, streams),
    ({ bytes, seconds: time }) => `${formatSize(bytes)}, ${(bytes / 1e6 / time).toFixed(0)} MB/s`,
  );
  if (flags.corrupt === true) {
    await step(
      'self-test: flip a byte of the image',
      () => flipByte(image.path),
      () => '',
    );
  }
  await step(
    'compare the copy with the image',
    async () => {
      const original = await sha256OfFile(image.path);
      expectSame(copy.sha256, original, 'what came over the network differs from the image');
      return expectSame(await sha256OfFile(path), original, 'the copy differs from the image');
    },
    (text) => text,
  );
  if (image.ext) {
    await step(
      'check the file system of the copy',
      () => checkFileSystem(path),
      () => 'clean',
    );
  }
  await rm(path);
}

/** -f: look even when it says it is clean; -n: change nothing. */
function checkFileSystem(path: string): Promise<string> {
  return Promise.resolve(runTool('e2fsck', ['-f', '-n', path]));
}

async function table(controller: Controller, target: TargetProcess, flags: Flags): Promise<void> {
  const rows: string[][] = [];
  for (const pattern of ['randread', 'randwrite'] as const) {
    for (const queueDepth of [1, 32]) {
      const name = `4 KiB ${pattern === 'randread' ? 'random read' : 'random write'}, queue depth ${queueDepth}`;
      const run = (): Promise<string[]> =>
        measure(controller, target, pattern, queueDepth, flags.seconds ?? MEASURE_MS);
      rows.push(await step(name, run, ([, iops]) => `${iops ?? ''} IOPS`));
    }
  }
  stdout.write(`\n${plainTable([...BENCH_HEAD, 'target CPU'], rows)}\n\n`);
}

async function initiatorSteps(
  options: Options,
  target: TargetProcess,
  image: Image,
  folder: string,
  flags: Flags,
): Promise<void> {
  await step(
    'discover',
    () => findSubsystem(options),
    (text) => text,
  );
  let controller = await step(
    'connect',
    () => connected(options),
    ({ sourceAddress, queues, pathMtu }) =>
      `from ${sourceAddress}, ${queues.length} I/O queue(s), path MTU ${pathMtu}`,
  );
  try {
    await copyAndCompare(controller, image, folder, flags);
    const expected = await step(
      `write ${RANDOM_TEXT} of random data to the second namespace`,
      () => writeRandom(controller),
      () => '',
    );
    await step(
      'disconnect',
      () => controller.disconnect(),
      () => '',
    );
    controller = await step(
      'connect again',
      () => connected(options),
      () => '',
    );
    await step(
      'read the random data back',
      async () => expectSame(await readRandom(controller), expected, 'the data read back differs'),
      (text) => text,
    );
    await table(controller, target, flags);
  } finally {
    await controller.disconnect();
  }
  await step(
    'stop the target',
    () => target.stop(),
    () => '',
  );
}

async function demo(given: string | undefined, flags: Flags): Promise<void> {
  const folder = await mkdtemp(join(tmpdir(), 'nvmeof-demo-'));
  let target: TargetProcess | undefined;
  const cleanUp = async (): Promise<void> => {
    await target?.kill();
    if (flags.keep === true) stdout.write(`Kept: ${folder}\n`);
    else await rm(folder, { recursive: true, force: true });
  };
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => {
      void cleanUp().then(() => process.exit(130));
    });
  }
  try {
    const image = await step(
      given === undefined ? 'make an image' : 'look at the image',
      () => (given === undefined ? makeImage(folder) : givenImage(given)),
      ({ description }) => description,
    );
    const { address, port } = flags.address ?? hostPort('127.0.0.1');
    const options = { address, port, nqn: NQN };
    // What was given stays as it is.
    const source = `${image.path.replaceAll(',', '\\,')},ro`;
    const listen = address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
    const args = ['--nqn', NQN, '--listen', listen, '--export', source];
    const pcap = flags.pcap === undefined ? [] : ['--pcap', flags.pcap];
    const started = await step(
      'start a target process',
      () => TargetProcess.start([...args, '--export', 'memory:256MiB,bs=4096', ...pcap]),
      ({ pid }) => `pid ${pid}, on ${listen}`,
    );
    target = started;
    await initiatorSteps(options, started, image, folder, flags);
    stdout.write('The demo has passed.\n');
  } finally {
    await cleanUp();
  }
}

const program = new Command('npm run demo --')
  .description(
    'Exports an image over RoCEv2 from one process and copies, checks, writes and measures it from another.',
  )
  .argument(
    '[path]',
    'image, file or block device to export, read-only (default: a new ext4 image)',
  )
  .option('--address <address[:port]>', 'where the target listens (default: 127.0.0.1)', hostPort)
  .option('--seconds <time>', `length of each measurement (default: ${MEASURE_MS / 1000})`, seconds)
  .option('--pcap <file>', 'let the target write every packet to a file for Wireshark')
  .option('--keep', 'keep the temporary folder')
  .addOption(
    new Option(
      '--corrupt',
      'self-test: flip a byte of the image before the comparison, which must fail',
    ),
  )
  .action((path: string | undefined, flags: Flags) => {
    if (flags.corrupt === true && path !== undefined) {
      throw new CommanderError(2, 'nvmeof.corrupt', '--corrupt is for the image made by the demo');
    }
    return demo(path, flags);
  });

await runProgram(program, (message) => `\nThe demo failed at: ${message}`);
