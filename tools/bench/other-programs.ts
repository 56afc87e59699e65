/** A remote namespace as programs of others see it: fio with our engine, and with NBD beside nbdkit's memory plugin. */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { connect } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { fioFigures } from './fio.ts';
import type { Figures, Subject } from './figures.ts';
import { NAMESPACE_BYTES } from './ours.ts';
import type { Parts } from './parts.ts';
import { run, SLACK_SECONDS } from './programs.ts';

const CLI = fileURLToPath(new URL('../cli/bin.js', import.meta.url));
const START_MS = 20_000;
const LOOK_MS = 20;
const BUILD_SECONDS = 600;

type Command = readonly [program: string, ...args: string[]];

function isServed(socket: string): Promise<boolean> {
  return new Promise((resolve) => {
    const client = connect(socket, () => {
      client.destroy();
      resolve(true);
    });
    client.once('error', () => {
      resolve(false);
    });
  });
}

/** Runs a server while `use` runs; it has started when somebody listens on its Unix socket, which is removed at the end. */
async function whileServed<T>(
  [program, ...args]: Command,
  socket: string,
  use: () => Promise<T>,
): Promise<T> {
  const server = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'], detached: true });
  let complaints = '';
  server.stderr.on('data', (chunk: Buffer) => (complaints += chunk.toString()));
  const ended = once(server, 'exit');
  try {
    const deadline = performance.now() + START_MS;
    while (!(await isServed(socket))) {
      // Without a pid there is no such program: then waiting for its end fails, and says so.
      if (server.pid === undefined || server.exitCode !== null || performance.now() > deadline) {
        throw new Error(`${program} ${args.join(' ')} does not serve ${socket}: ${complaints}`);
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
    return await use();
  } finally {
    server.kill('SIGTERM');
    await ended;
    rmSync(socket, { force: true });
  }
}

function nbdFio(socket: string, ...options: readonly string[]): string[] {
  const uri = `--uri=nbd+unix:///?socket=${socket}`;
  return ['--name=nbd', '--ioengine=nbd', uri, '--output-format=json', ...options];
}

async function nbdReads(socket: string, depth: number, seconds: number): Promise<Figures> {
  const work = ['--rw=randread', '--bs=4k', `--iodepth=${depth}`, '--norandommap'];
  const args = nbdFio(socket, ...work, '--time_based', `--runtime=${seconds}`);
  const text = await run('fio', args, seconds + SLACK_SECONDS);
  // The engine says a sentence of its own first.
  return fioFigures(text.slice(text.indexOf('{\n')));
}

/** fio's NBD engine on `nvmeof attach`. */
export function attachedByNbd(parts: Parts, depth: number): Subject {
  return {
    name: 'nvmeof attach',
    async measure(seconds): Promise<Figures> {
      const { address, nqn } = await parts.targets.get(parts.memory);
      const socket = join(parts.floorProgram.folder, 'attached');
      const cores = ['--cores', `${parts.hostCore}`];
      const attach = ['attach', address, nqn, '--nbd', socket, ...cores];
      return whileServed([process.execPath, CLI, ...attach], socket, () =>
        nbdReads(socket, depth, seconds),
      );
    },
  };
}

/** The same engine on memory of nbdkit, without a network behind it. */
export function nbdkitMemory(parts: Parts, depth: number): Subject {
  return {
    name: 'nbdkit, memory',
    async measure(seconds): Promise<Figures> {
      const socket = join(parts.floorProgram.folder, 'nbdkit');
      const server: Command = ['nbdkit', '-f', '-U', socket, 'memory', `${NAMESPACE_BYTES}`];
      return whileServed(server, socket, async () => {
        // Memory that was never written is not there, and reads fast.
        const fill = nbdFio(socket, '--rw=write', '--bs=1m', '--iodepth=4');
        await run('fio', fill, SLACK_SECONDS);
        return nbdReads(socket, depth, seconds);
      });
    },
  };
}

/** Built once for the installed fio, from sources that it downloads. */
export function buildEngine(): Promise<string> {
  const script = fileURLToPath(new URL('../fio/build-engine.sh', import.meta.url));
  return run('bash', [script], BUILD_SECONDS);
}

/** fio with our engine, a child of `nvmeof fio`, which holds the connection. */
export function fioEngine(parts: Parts): Subject {
  return {
    name: 'nvmeof fio',
    async measure(seconds): Promise<Figures> {
      const { address, nqn } = await parts.targets.get(parts.memory);
      const job = [address, nqn, 'randread-4k-qd32', '--json', '--cores', `${parts.hostCore}`];
      const args = [CLI, 'fio', ...job, '--', `--runtime=${seconds}`];
      return fioFigures(await run(process.execPath, args, seconds + SLACK_SECONDS));
    },
  };
}
