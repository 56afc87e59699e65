/** Runs the command line in this process with its streams in memory. */
import { PassThrough, Readable } from 'node:stream';
import { main } from '../../../tools/cli/main.ts';

export interface Run {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

export async function run(args: readonly string[]): Promise<Run> {
  const stdout = new PassThrough();
  const stderr = new PassThrough();
  const code = await main(args, { stdin: Readable.from([]), stdout, stderr });
  const text = (stream: PassThrough): string => {
    stream.end();
    return (stream.read() as Buffer | null)?.toString() ?? '';
  };
  return { code, stdout: text(stdout), stderr: text(stderr) };
}
