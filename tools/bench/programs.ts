/** Programs of others and the floor: run with a time limit, their output returned. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import { promisify } from 'node:util';

const SOURCE = fileURLToPath(new URL('../limits/roce_floor.c', import.meta.url));
const ROUND_TRIP = fileURLToPath(new URL('../limits/pp.c', import.meta.url));
/** Of each of three repetitions. */
const ROUND_TRIPS = 20_000;
const ROUND_TRIP_SECONDS = 60;
const BUILD_SECONDS = 120;
/** What a program may take beyond the time it measures. */
export const SLACK_SECONDS = 30;
const execute = promisify(execFile);

export async function run(
  program: string,
  args: readonly string[],
  seconds: number,
  cwd?: string,
): Promise<string> {
  const { stdout } = await execute(program, [...args], {
    timeout: seconds * 1000,
    killSignal: 'SIGKILL',
    maxBuffer: 64 << 20,
    ...(cwd === undefined ? {} : { cwd }),
  });
  return stdout;
}

/** A round trip of 64 bytes over UDP between two threads that block, as tools/limits/pp.c measures it. */
export class RoundTripProgram {
  readonly #folder: string;
  #built: Promise<string> | undefined;

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** Medians of its repetitions, µs. */
  async microseconds(): Promise<number[]> {
    this.#built ??= this.#build();
    const text = await run(
      await this.#built,
      ['udp', 'block', '64', `${ROUND_TRIPS}`],
      ROUND_TRIP_SECONDS,
    );
    return [...text.matchAll(/\bp50 ([\d.]+)/g)].map(([, value]) => Number(value));
  }

  async #build(): Promise<string> {
    const out = join(this.#folder, 'pp');
    await run('gcc', ['-O2', '-march=native', '-pthread', '-o', out, ROUND_TRIP], BUILD_SECONDS);
    return out;
  }
}

/** roce_floor in a folder of its own, built at its first use. */
export class FloorProgram {
  readonly folder: string;
  #built: Promise<string> | undefined;

  constructor(folder: string) {
    this.folder = folder;
  }

  path(): Promise<string> {
    this.#built ??= this.#build();
    return this.#built;
  }

  async #build(): Promise<string> {
    const out = join(this.folder, 'roce_floor');
    const libraries = ['-lisal', '-luring', '-lpthread'];
    await run('gcc', ['-O3', '-march=native', '-o', out, SOURCE, ...libraries], BUILD_SECONDS);
    return out;
  }
}
