/** A target as a process of its own: `nvmeof target`, started, watched and ended by its pid. */
import { spawn } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { systemClock, within } from '../native/common/clock.ts';

/** One file, which is not compiled: beside the sources, or from dist/ in the package's tools/. */
const CLI =
  ['./cli/bin.js', '../../tools/cli/bin.js']
    .map((path) => fileURLToPath(new URL(path, import.meta.url)))
    .find((path) => existsSync(path)) ?? '';
const START_MS = 20_000;
const STOP_MS = 10_000;
const READY = /nvme connect -t rdma/;
/** Clock ticks of /proc/PID/stat: USER_HZ is 100 on every Linux that Node runs on. */
const TICKS_PER_SECOND = 100;

export interface ProcessUsage {
  /** User and system, all threads. */
  readonly cpuSeconds: number;
  readonly residentBytes: number;
}

/** Of a process of this machine; zeros when it is gone. */
export function processUsage(pid: number): ProcessUsage {
  try {
    // The name in parentheses may hold blanks; the numbers follow it.
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
    const fields = text.slice(text.lastIndexOf(') ') + 2).split(' ');
    const status = readFileSync(`/proc/${pid}/status`, 'latin1');
    return {
      cpuSeconds: (Number(fields[11]) + Number(fields[12])) / TICKS_PER_SECOND,
      residentBytes: Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1] ?? 0) * 1024,
    };
  } catch {
    return { cpuSeconds: 0, residentBytes: 0 };
  }
}

/** What a target says to a request: a value, or why there is none. */
interface Answer {
  readonly value?: unknown;
  readonly error?: string;
}

export class TargetProcess {
  readonly #child: ChildProcess;
  readonly #ended: Promise<number | NodeJS.Signals>;
  /** It has said that it listens. */
  readonly #ready: Promise<void>;
  #output = '';
  #running = true;
  /** Requests that were not answered. */
  readonly #answers = new Map<number, (answer: Answer) => void>();
  #requests = 0;

  private constructor(args: readonly string[], channel: boolean, prefix: readonly string[]) {
    const [command = '', ...words] = [...prefix, process.execPath, CLI, 'target', ...args];
    this.#child = spawn(command, words, {
      stdio: ['ignore', 'pipe', 'pipe', ...(channel ? (['ipc'] as const) : [])],
      // Ctrl-C goes to whoever started it, and ends it when it is done with it.
      detached: true,
    });
    let tellReady: (() => void) | undefined;
    this.#ready = new Promise((resolve) => {
      tellReady = resolve;
    });
    const collect = (chunk: Buffer): void => {
      this.#output += chunk.toString();
      if (!tellReady || !READY.test(this.#output)) return;
      tellReady();
      // What it prints from now on is not searched again and again.
      tellReady = undefined;
    };
    this.#child.stdout?.on('data', collect);
    this.#child.stderr?.on('data', collect);
    this.#child.on('message', (message: object) => {
      const answer = message as Answer & { readonly id: number };
      this.#answered(answer.id, answer);
    });
    this.#ended = new Promise((resolve) => {
      this.#child.once('exit', (code, signal) => {
        this.#running = false;
        resolve(code ?? signal ?? 'SIGKILL');
        for (const id of this.#answers.keys())
          this.#answered(id, { error: 'the target has ended' });
      });
      this.#child.once('error', (error) => {
        this.#running = false;
        this.#output += error.message;
        resolve(1);
      });
    });
  }

  /**
   * Resolves when it listens. `channel`: it can be asked for things by `ask`. `prefix`: of the command line, a program that
   * becomes it (exec).
   */
  static async start(
    args: readonly string[],
    channel = false,
    prefix: readonly string[] = [],
  ): Promise<TargetProcess> {
    const target = new TargetProcess(args, channel, prefix);
    const ready = Promise.race([target.#ready.then(() => true), target.#ended.then(() => false)]);
    const inTime = await within(systemClock, START_MS, ready);
    if (inTime && (await ready)) return target;
    await target.kill();
    const what = inTime ? 'did not start' : `was not ready within ${START_MS} ms`;
    throw new Error(`the target ${what}:\n${target.#output}`);
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  get running(): boolean {
    return this.#running;
  }

  get output(): string {
    return this.#output;
  }

  /** A signal that does not end it; what it does then is its own affair. */
  signal(name: NodeJS.Signals): void {
    this.#child.kill(name);
  }

  /** Asks by its channel; resolves with the answer, rejects with its words, or when it ends or is silent for `ms`. */
  async ask(request: object, ms = STOP_MS): Promise<unknown> {
    const id = ++this.#requests;
    const { value, error } = await new Promise<Answer>((resolve) => {
      const late = setTimeout(() => {
        resolve({ error: `no answer within ${ms} ms` });
      }, ms);
      this.#answers.set(id, (answer) => {
        clearTimeout(late);
        resolve(answer);
      });
      this.#child.send({ id, ...request }, (failure) => {
        if (failure) this.#answered(id, { error: failure.message });
      });
    });
    this.#answers.delete(id);
    if (error !== undefined) throw new Error(error);
    return value;
  }

  #answered(id: number, answer: Answer): void {
    this.#answers.get(id)?.(answer);
  }

  /** CPU seconds used so far, all threads. */
  cpuSeconds(): number {
    return processUsage(this.pid).cpuSeconds;
  }

  /** SIGTERM; it must end by itself, and with 0. */
  async stop(): Promise<void> {
    this.#child.kill('SIGTERM');
    if (!(await within(systemClock, STOP_MS, this.#ended))) {
      await this.kill();
      throw new Error(`the target did not end within ${STOP_MS} ms of SIGTERM`);
    }
    const ended = await this.#ended;
    if (ended !== 0) throw new Error(`the target ended with ${ended}:\n${this.#output}`);
  }

  /** For every other way out. */
  async kill(): Promise<void> {
    if (this.#running) this.#child.kill('SIGKILL');
    await this.#ended;
  }
}
