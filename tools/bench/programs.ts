/** Programs of others and of tools/limits: built once, run with a time limit, their output returned. */
import { execFile } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { join } from 'node:path';
import { promisify } from 'node:util';

const LIMITS = fileURLToPath(new URL('../limits/', import.meta.url));
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

/** Builds the limits into a folder; returns the path of one of them. */
export class LimitPrograms {
  readonly #folder: string;
  readonly #built = new Map<string, Promise<string>>();

  constructor(folder: string) {
    this.#folder = folder;
  }

  get folder(): string {
    return this.#folder;
  }

  program(name: 'roce_floor' | 'pp' | 'udp' | 'tcp' | 'membw' | 'shmpp'): Promise<string> {
    let built = this.#built.get(name);
    if (!built) {
      const out = join(this.#folder, name);
      const libraries = name === 'roce_floor' ? ['-lisal', '-luring'] : [];
      built = run(
        'gcc',
        ['-O3', '-march=native', '-pthread', '-o', out, join(LIMITS, `${name}.c`), ...libraries],
        120,
      ).then(() => out);
      this.#built.set(name, built);
    }
    return built;
  }
}
