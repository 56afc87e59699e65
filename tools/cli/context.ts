/**
 * What every sub-command gets: the streams of the process, and how to say things. Also the shape of a sub-command and
 * the error class for failures that the command line itself finds.
 */
import type { Readable, Writable } from 'node:stream';
import type { Command } from 'commander';
import { ExitCode as ExitCodes } from './exit-codes.ts';
import type { ExitCode } from './exit-codes.ts';

export interface CliStreams {
  readonly stdin: Readable;
  readonly stdout: Writable & { readonly isTTY?: boolean };
  readonly stderr: Writable & { readonly isTTY?: boolean; readonly columns?: number };
}

/** A row in the table of sub-commands. */
export interface SubCommand {
  readonly name: string;
  /** Adds arguments, options, examples and action to the command that the table made. */
  readonly define: (command: Command, context: CliContext) => void;
}

/** Ends the command with one sentence and, where there is one, what to do about it. */
export class CliError extends Error {
  override readonly name = 'CliError';
  readonly exitCode: ExitCode;
  readonly remedy: string | undefined;

  constructor(
    exitCode: ExitCode,
    message: string,
    options: { remedy?: string; cause?: unknown } = {},
  ) {
    super(message, { cause: options.cause });
    this.exitCode = exitCode;
    this.remedy = options.remedy;
  }
}

export class CliContext {
  readonly streams: CliStreams;
  /** What a command that ends without an error exits with; `fio` passes on another program's. */
  exitCode: number = ExitCodes.ok;

  constructor(streams: CliStreams) {
    this.streams = streams;
  }

  /** A line on stdout: the result somebody asked for. */
  print(text = ''): void {
    this.streams.stdout.write(`${text}\n`);
  }

  /** A line on stderr: what somebody should know besides. */
  note(text: string): void {
    this.streams.stderr.write(`${text}\n`);
  }

  /** 64-bit numbers are printed as JSON numbers where they are exact, else as strings. */
  printJson(value: unknown): void {
    this.print(toJson(value));
  }
}

export function toJson(value: unknown): string {
  return JSON.stringify(
    value,
    (_, entry: unknown) => {
      if (typeof entry !== 'bigint') return entry;
      return entry <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(entry) : entry.toString();
    },
    2,
  );
}
