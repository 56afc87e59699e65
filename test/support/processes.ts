/**
 * The product's own processes for end-to-end tests: started from the sources, ended by pid, their output kept for the
 * failure message. Loopback addresses are drawn at random so that runs do not meet.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

export const CLI = fileURLToPath(new URL('../../tools/cli/bin.js', import.meta.url));
const START_MS = 20_000;

/** A random address of 127.0.0.0/8 that nobody else is likely to hold. */
export function loopbackAddress(): string {
  const byte = (): number => 1 + Math.floor(Math.random() * 253);
  return `127.${byte()}.${byte()}.${byte()}`;
}

export interface Finished {
  readonly code: number | null;
  readonly signal: NodeJS.Signals | null;
  readonly stdout: string;
  readonly stderr: string;
}

export class Process {
  readonly child: ChildProcess;
  stdout = '';
  stderr = '';
  readonly #ended: Promise<Finished>;

  /** `nvmeof …`, or another program. */
  constructor(args: readonly string[], env: NodeJS.ProcessEnv = {}, program?: string) {
    const [file, first] = program === undefined ? [process.execPath, [CLI]] : [program, []];
    this.child = spawn(file, [...first, ...args], {
      // Not a dist/ that may be older.
      env: { NVMEOF_FROM_SOURCE: '1', ...process.env, ...env },
      stdio: ['pipe', 'pipe', 'pipe'],
    });
    this.child.stdout?.on('data', (chunk: Buffer) => (this.stdout += chunk.toString('latin1')));
    this.child.stderr?.on('data', (chunk: Buffer) => (this.stderr += chunk.toString()));
    this.#ended = once(this.child, 'close').then(([code, signal]) => ({
      code: code as number | null,
      signal: signal as NodeJS.Signals | null,
      stdout: this.stdout,
      stderr: this.stderr,
    }));
  }

  ended(): Promise<Finished> {
    return this.#ended;
  }

  /** Resolves when the output (either stream) matches; rejects with all output when the process ends or time is up. */
  async waitFor(pattern: RegExp, ms = START_MS): Promise<RegExpExecArray> {
    const deadline = Date.now() + ms;
    for (;;) {
      const match = pattern.exec(this.stdout) ?? pattern.exec(this.stderr);
      if (match) return match;
      const left = deadline - Date.now();
      const timer = new AbortController();
      const event = await Promise.race([
        once(this.child.stdout as NodeJS.ReadableStream, 'data', { signal: timer.signal }),
        once(this.child.stderr as NodeJS.ReadableStream, 'data', { signal: timer.signal }),
        this.#ended,
        new Promise((resolve) => setTimeout(resolve, Math.max(left, 0), 'late').unref()),
      ]);
      timer.abort();
      if (event === 'late' || this.child.exitCode !== null) {
        throw new Error(
          `no ${String(pattern)} in the output:\n${this.stdout}\n${this.stderr}\n` +
            `exit code ${String(this.child.exitCode)}`,
        );
      }
    }
  }

  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<Finished> {
    if (this.child.exitCode === null && this.child.signalCode === null) this.child.kill(signal);
    return this.#ended;
  }
}

/** Runs a sub-command to its end. */
export function nvmeof(args: readonly string[], input?: Buffer): Promise<Finished> {
  const running = new Process(args);
  running.child.stdin?.end(input);
  return running.ended();
}

export interface RunningTarget {
  readonly process: Process;
  readonly address: string;
  readonly nqn: string;
  stop(signal?: NodeJS.Signals): Promise<Finished>;
}

/** `nvmeof target` on a random loopback address; resolves when it listens. */
export async function startTarget(
  args: readonly string[],
  nqn = 'nqn.2026-11.io.nvmeof:test',
  address = loopbackAddress(),
): Promise<RunningTarget> {
  // Its default place is one for all tests that run at a time.
  const base = ['target', '--nqn', nqn, '--listen', address, '--no-control'];
  const running = new Process([...base, ...args]);
  await running.waitFor(/nvme connect -t rdma/);
  return { process: running, address, nqn, stop: (signal) => running.stop(signal) };
}

/** A folder that goes with the test. */
export function temporaryFolder(): { readonly path: string; remove(): void } {
  const path = mkdtempSync(join(tmpdir(), 'nvmeof-test-'));
  return {
    path,
    remove: () => {
      rmSync(path, { recursive: true, force: true });
    },
  };
}
