/** Running `nvmeof attach` processes, as commands reach them. */
import type { z } from 'zod';
import { messageOf } from '../../../native/common/errors.ts';
import { CliError } from '../context.ts';
import type { CliContext } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { call } from '../control/client.ts';
import type { Peer } from '../control/client.ts';
import { inForm, perform } from '../control/verb.ts';
import type { Call, SharedFlags } from '../control/verb.ts';
import { attachSockets } from './sockets.ts';
import { hostStatus } from './view.ts';
import type { HostStatus } from './view.ts';

const ATTACH: Peer = {
  name: 'nvmeof attach',
  remedy: () =>
    'nvmeof list-subsys shows those that run; one that was started with --control: name its socket',
};

/** Nobody is there: ENOENT, or the process that left it was killed. */
const LEFT_OVER: ReadonlySet<unknown> = new Set(['ENOENT', 'ECONNREFUSED']);

export interface Running {
  readonly socket: string;
  readonly status: HostStatus;
}

export async function statusAt(socket: string): Promise<Running> {
  const answer = await call(socket, 'host.status', {}, ATTACH);
  return { socket, status: inForm(hostStatus, answer, ATTACH, socket) };
}

/** Those found in the usual places; `unseen` hears of sockets that do not answer as they should. */
export async function runningAttaches(unseen: (text: string) => void): Promise<Running[]> {
  const found = attachSockets().map(async (socket) => {
    try {
      return [await statusAt(socket)];
    } catch (error) {
      const cause =
        error instanceof Error ? (error.cause as NodeJS.ErrnoException | undefined) : {};
      if (!LEFT_OVER.has((cause as { code?: unknown } | undefined)?.code)) unseen(messageOf(error));
      return [];
    }
  });
  return (await Promise.all(found)).flat();
}

/** The socket that was named, or that of the only one that runs. */
async function oneAttach(named: string | undefined): Promise<string> {
  if (named !== undefined) return named;
  const running = await runningAttaches(() => undefined);
  const [first] = running;
  if (first && running.length === 1) return first.socket;
  throw first
    ? new CliError(ExitCode.usage, `${running.length} nvmeof attach run`, {
        remedy: `say which: --socket ${running.map(({ socket }) => socket).join(' or ')}`,
      })
    : new CliError(ExitCode.cannotConnect, 'no nvmeof attach runs that this user may ask', {
        remedy: 'name its control socket: --socket PATH',
      });
}

/** A command that is a call to it. */
export async function performOnAttach<R extends z.ZodType>(
  context: CliContext,
  flags: SharedFlags,
  made: Call<R>,
): Promise<void> {
  await perform(context, { ...flags, socket: await oneAttach(flags.socket) }, made, ATTACH);
}
