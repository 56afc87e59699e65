/** Programs of others and the floor: run with a time limit, their output returned. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import { promisify } from 'node:util';

/** Of each of three repetitions. */
const ROUND_TRIPS = 25;
const ROUND_TRIP_SECONDS = 60;
const BUILD_SECONDS = 120;
/** What a program may take beyond the time it measures. */
export const SLACK_SECONDS = 30;
const execute = promisify(execFile);

export async function run(
  program: string,
  args: readonly string[],
  seconds: number,
  where: { readonly cwd?: string; readonly env?: NodeJS.ProcessEnv } = {},
): Promise<string> {
  const { stdout } = await execute(program, [...args], {
    timeout: seconds * 1000,
    killSignal: 'SIGKILL',
    maxBuffer: 64 << 20,
    ...where,
  });
  return stdout;
}

/** One of tools/limits in a folder, built at its first use. */
class LimitProgram {
  readonly folder: string;
  readonly #name: string;
  readonly #flags: readonly string[];
  #built: Promise<string> | undefined;

  constructor(folder: string, name: string, flags: readonly string[]) {
    this.folder = folder;
    this.#name = name;
    this.#flags = flags;
  }

  path(): Promise<string> {
    this.#built ??= this.#build();
    return this.#built;
  }

  async #build(): Promise<string> {
    const out = join(this.folder, this.#name);
    const source = fileURLToPath(new URL(`../limits/${this.#name}.c`, import.meta.url));
    await run('gcc', ['-march=native', '-o', out, source, ...this.#flags], BUILD_SECONDS);
    return out;
  }
}

/** A round trip of 64 bytes over UDP between two threads that block, after silence. */
export class RoundTripProgram extends LimitProgram {
  constructor(folder: string) {
    super(folder, 'pp', ['-O2', '-pthread']);
  }

  /** Medians of its repetitions, µs. */
  async microseconds(silenceMs: number): Promise<number[]> {
    const args = ['udp', 'block', '64', ROUND_TRIPS, silenceMs * 1000].map(String);
    const text = await run(await this.path(), args, ROUND_TRIP_SECONDS);
    return [...text.matchAll(/\bp50 ([\d.]+)/g)].map(([, value]) => Number(value));
  }
}

export class FloorProgram extends LimitProgram {
  constructor(folder: string) {
    super(folder, 'roce_floor', ['-O3', '-lisal', '-luring', '-lpthread']);
  }
}
