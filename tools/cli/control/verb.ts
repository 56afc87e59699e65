/**
 * Commands that are a call to a control socket, of a running target unless they say whose: arguments become parameters of a method,
 * its result becomes lines. All share --socket and --json.
 */
import type { Command } from 'commander';
import type { z } from 'zod';
import type { CliContext } from '../context.ts';
import { CliError } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { call, TARGET } from './client.ts';
import type { Peer } from './client.ts';

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

const TARGET_SOCKET = 'control socket of the target (default: where a target opens it)';

export function addSharedOptions(command: Command, socket = TARGET_SOCKET): Command {
  return command.option('--socket <path>', socket).option('--json', 'print the answer as JSON');
}

/** A command below another one. */
export function verb(
  parent: Command,
  nameAndArguments: string,
  summary: string,
  socket?: string,
): Command {
  const command = parent.command(nameAndArguments).summary(summary).description(`${summary}.`);
  return addSharedOptions(command.option('--verbose', 'show where an error came from'), socket);
}

/** What was answered, or a CliError that names who answers otherwise, and to what; `remedy` may add to what can be done. */
export function inForm<R extends z.ZodType>(
  form: R,
  answer: unknown,
  { name }: Peer,
  what: string,
  remedy = '',
): z.output<R> {
  const parsed = form.safeParse(answer);
  if (parsed.success) return parsed.data;
  throw new CliError(ExitCode.failed, `${what}: the ${name} answers in another form`, {
    remedy: `use the nvmeof of the same version as the ${name}${remedy}`,
  });
}

export async function perform<R extends z.ZodType>(
  context: CliContext,
  flags: SharedFlags,
  { method, params, result, show }: Call<R>,
  peer = TARGET,
): Promise<void> {
  const answer = await call(flags.socket, method, params, peer);
  if (flags.json === true) context.printJson(answer);
  else show(context, inForm(result, answer, peer, method, ', or --json'));
}
