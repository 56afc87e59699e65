/**
 * Commands that are a call to a running target: arguments become parameters of a method, its result becomes lines. All share
 * --socket and --json.
 */
import type { Command } from 'commander';
import type { z } from 'zod';
import type { CliContext } from '../context.ts';
import { CliError } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { call } from './client.ts';

export interface SharedFlags {
  readonly socket?: string;
  readonly json?: boolean;
}

export interface Call<R extends z.ZodType> {
  readonly method: string;
  readonly params: object;
  /** Of the result. */
  readonly result: R;
  /** For people; not called with --json. */
  readonly show: (context: CliContext, result: z.output<R>) => void;
}

export function addSharedOptions(command: Command): Command {
  return command
    .option('--socket <path>', 'control socket of the target (default: where a target opens it)')
    .option('--json', 'print the answer as JSON');
}

/** A command below another one. */
export function verb(parent: Command, nameAndArguments: string, summary: string): Command {
  const command = parent.command(nameAndArguments).summary(summary).description(`${summary}.`);
  return addSharedOptions(command.option('--verbose', 'show where an error came from'));
}

export async function perform<R extends z.ZodType>(
  context: CliContext,
  flags: SharedFlags,
  { method, params, result, show }: Call<R>,
): Promise<void> {
  const answer = await call(flags.socket, method, params);
  if (flags.json === true) {
    context.printJson(answer);
    return;
  }
  const parsed = result.safeParse(answer);
  if (!parsed.success) {
    throw new CliError(ExitCode.failed, `${method}: the target answers in another form`, {
      remedy: 'use the nvmeof of the same version as the target, or --json',
    });
  }
  show(context, parsed.data);
}
