/** Finding fio, its engine and job files, and running it as a child in the foreground. */
import { execFile, spawn } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { constants } from 'node:os';
import { basename, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { CliError } from './context.ts';
import { ExitCode } from './exit-codes.ts';

/** tools/fio of the package; this file runs as tools/cli/ or as dist/tools/cli/. */
function fioFolder(): string {
  const [source, installed] = ['../fio/', '../../../tools/fio/'].map((path) =>
    fileURLToPath(new URL(path, import.meta.url)),
  ) as [string, string];
  return existsSync(join(source, 'build-engine.sh')) ? source : installed;
}

/** Names of the job files that come with the package. */
export function shippedJobs(): string[] {
  return readdirSync(join(fioFolder(), 'jobs'))
    .filter((name) => name.endsWith('.fio'))
    .map((name) => basename(name, '.fio'))
    .sort();
}

/** A path, or the name of one that comes with the package. */
export function findJob(job: string): string {
  if (existsSync(job)) return job;
  const shipped = join(fioFolder(), 'jobs', `${job}.fio`);
  if (!job.includes('/') && existsSync(shipped)) return shipped;
  throw new CliError(ExitCode.usage, `there is no job file ${job}`, {
    remedy: `name a file, or one of ${shippedJobs().join(', ')}`,
  });
}

/** The path of the engine for the installed fio. It is built by hand, because that downloads fio's sources. */
export function findEngine(): Promise<string> {
  const script = join(fioFolder(), 'build-engine.sh');
  return new Promise((resolve, reject) => {
    execFile('bash', [script, '--check'], (error, stdout, stderr) => {
      if (error === null) {
        resolve(stdout.trim());
        return;
      }
      const [what, remedy] = stderr.trim().split(/: (?=apt-get|bash|give)/);
      reject(new CliError(ExitCode.failed, what ?? 'fio cannot be used', remedy ? { remedy } : {}));
    });
  });
}

/** fio separates file names by colons. */
export function fileOption(path: string): string {
  return `--filename=${path.replaceAll('\\', '\\\\').replaceAll(':', '\\:')}`;
}

/** What a job gets that does not say it itself. Options given later win, and the job file's own over all. */
export function defaultOptions(engine: string, path: string): string[] {
  return [`--ioengine=${engine}`, fileOption(path), '--runtime=30', '--group_reporting'];
}

/** Runs fio with our streams; resolves with its exit code, or with 128 and the number of the signal that ended it. */
export function runFio(args: readonly string[]): Promise<number> {
  return new Promise((resolve, reject) => {
    const child = spawn('fio', args, { stdio: 'inherit' });
    // Ctrl-C reaches fio too: it prints what it has, and we clean up after it.
    const wait = (): void => undefined;
    const pass = (signal: NodeJS.Signals): void => void child.kill(signal);
    process.on('SIGINT', wait).on('SIGTERM', pass);
    const forget = (): void => {
      process.off('SIGINT', wait).off('SIGTERM', pass);
    };
    child.once('error', (error: NodeJS.ErrnoException) => {
      forget();
      reject(
        error.code === 'ENOENT'
          ? new CliError(ExitCode.failed, 'fio is not installed', {
              remedy: 'apt-get install fio',
              cause: error,
            })
          : error,
      );
    });
    child.once('exit', (code, signal) => {
      forget();
      resolve(code ?? 128 + constants.signals[signal ?? 'SIGKILL']);
    });
  });
}
