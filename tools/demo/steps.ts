/**
 * The steps of the demo on the initiator's side, each of which either holds or throws. Order and reporting are in
 * main.ts.
 */
import { createHash, randomBytes } from 'node:crypto';
import { createWriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';
import { connect, discover } from '../../initiator/index.ts';
import type { ConnectOptions, Controller } from '../../initiator/index.ts';
import { formatSize } from '../../native/common/size.ts';
import { checkOutcome, runBench } from '../cli/bench-run.ts';
import type { Pattern } from '../cli/bench-run.ts';
import type { CliStreams } from '../cli/context.ts';
import { copyOut } from '../cli/copy.ts';
import { startProgress } from '../cli/progress.ts';
import { benchRow } from '../cli/tables.ts';
import type { TargetProcess } from '../target-process.ts';

export const IMAGE_NSID = 1;
export const SCRATCH_NSID = 2;
const RANDOM_BYTES = 64 * 1024 * 1024;
const RANDOM_PIECE = 1024 * 1024;

export type Options = Pick<ConnectOptions, 'address' | 'port' | 'nqn'>;

/** The subsystem must be among those discovered. */
export async function findSubsystem({ nqn, ...at }: Options): Promise<string> {
  const { paths } = await discover(at);
  const found = paths.find((path) => path.nqn === nqn && path.kind === 'subsystem');
  if (!found) {
    throw new Error(
      `the discovery log does not list ${nqn}, only ${paths.map((p) => p.nqn).join(', ')}`,
    );
  }
  return `${found.nqn} at ${found.address}:${found.service}`;
}

export function connected(options: Options): Promise<Controller> {
  return connect({ ...options, depth: 64 });
}

/** The whole namespace into a file; resolves with its SHA-256, taken from what went into the file. */
export async function copyNamespace(
  controller: Controller,
  path: string,
  streams: CliStreams,
): Promise<{ readonly sha256: string; readonly bytes: number; readonly seconds: number }> {
  const namespace = controller.namespace(IMAGE_NSID);
  const bytes = Number(namespace.bytes);
  const hash = createHash('sha256');
  const file = createWriteStream(path);
  const written = finished(file);
  written.catch(() => undefined);
  const progress = startProgress(streams, '  copying', bytes);
  const startedAt = performance.now();
  const write = file.write.bind(file) as (chunk: Uint8Array) => boolean;
  const hashing = Object.assign(file, {
    write: (chunk: Uint8Array) => {
      hash.update(chunk);
      return write(chunk);
    },
  });
  try {
    const range = { offset: 0n, length: namespace.bytes };
    const copied = copyOut(controller, namespace, range, hashing, progress);
    await Promise.race([copied, written.then(() => copied)]);
    file.end();
    await written;
  } finally {
    progress.end();
    file.destroy();
  }
  return { sha256: hash.digest('hex'), bytes, seconds: (performance.now() - startedAt) / 1000 };
}

/** Random data at random block addresses' worth of the scratch namespace; returns what must be read back. */
export async function writeRandom(controller: Controller): Promise<string> {
  const namespace = controller.namespace(SCRATCH_NSID);
  const hash = createHash('sha256');
  const total = Math.min(RANDOM_BYTES, Number(namespace.bytes));
  const blocks = RANDOM_PIECE / namespace.lbaSize;
  for (let done = 0; done < total; done += RANDOM_PIECE) {
    const data = randomBytes(RANDOM_PIECE);
    hash.update(data);
    await namespace.write(BigInt((done / RANDOM_PIECE) * blocks), data);
  }
  await namespace.flush();
  return hash.digest('hex');
}

export async function readRandom(controller: Controller): Promise<string> {
  const namespace = controller.namespace(SCRATCH_NSID);
  const hash = createHash('sha256');
  const total = Math.min(RANDOM_BYTES, Number(namespace.bytes));
  const blocks = RANDOM_PIECE / namespace.lbaSize;
  const buffer = controller.allocateBuffer(RANDOM_PIECE);
  try {
    for (let done = 0; done < total; done += RANDOM_PIECE) {
      const lba = BigInt((done / RANDOM_PIECE) * blocks);
      hash.update(await namespace.read(lba, blocks, { buffer: buffer.bytes }));
    }
  } finally {
    buffer.release();
  }
  return hash.digest('hex');
}

export const RANDOM_TEXT = formatSize(RANDOM_BYTES);

/** One row of the table; the last column is the target's share, of all its cores. */
export async function measure(
  controller: Controller,
  target: TargetProcess,
  pattern: Pattern,
  queueDepth: number,
  runtimeMs: number,
): Promise<string[]> {
  const cpuBefore = target.cpuSeconds();
  const startedAt = performance.now();
  const outcome = await runBench(controller, {
    nsid: SCRATCH_NSID,
    pattern,
    readPercent: 50,
    blockBytes: 4096,
    queueDepth,
    runtimeMs,
    warmupMs: 0,
    commandCount: 0n,
    verify: false,
    bufferBytes: 256 * 1024 * 1024,
    regionBytes: undefined,
    seed: 1n,
  });
  await checkOutcome(controller, outcome);
  const share = (target.cpuSeconds() - cpuBefore) / ((performance.now() - startedAt) / 1000);
  const [row] = outcome.rows;
  if (!row) throw new Error('no command was finished');
  return [...benchRow(row), `${Math.round(share * 100)} %`];
}
