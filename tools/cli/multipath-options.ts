/** Options of commands that reach a namespace over several paths. Timers are named, and counted in seconds, as nvme-cli has them. */
import { InvalidArgumentError, Option } from 'commander';
import type { Command } from 'commander';
import { PATH_POLICIES, WRITES_POLICIES } from '../../initiator/index.ts';
import type {
  ConnectPathsOptions,
  MultipathSubsystem,
  PathPolicy,
  WritesPolicy,
} from '../../initiator/index.ts';
import { connectOptions, given, hostPort, seconds } from './arguments.ts';
import type { ConnectFlags, HostPort } from './arguments.ts';
import type { CliContext } from './context.ts';

export interface MultipathFlags extends ConnectFlags {
  readonly path?: readonly HostPort[];
  readonly discover?: readonly HostPort[];
  readonly iopolicy?: PathPolicy;
  readonly reconnectDelay?: number;
  readonly ctrlLossTmo?: number;
  readonly fastIoFailTmo?: number;
  readonly writes?: WritesPolicy;
}

/** -1: never. */
function secondsOrNever(text: string): number {
  return text === '-1' || text === 'never' ? -1 : seconds(text);
}

function morePaths(text: string, all: readonly HostPort[] = []): readonly HostPort[] {
  const path = hostPort(text);
  if (all.some((each) => each.address === path.address && each.port === path.port)) {
    throw new InvalidArgumentError(`${text} is named twice.`);
  }
  return [...all, path];
}

export function addMultipathOptions(command: Command): Command {
  return command
    .option(
      '--path <address[:port]>',
      'one more path to the same subsystem; repeat for more',
      morePaths,
    )
    .option(
      '--discover <address[:port]>',
      'follow this discovery service: ports that it lists are paths too, as they come and go; repeat for more',
      morePaths,
    )
    .addOption(
      new Option(
        '--iopolicy <policy>',
        'how commands choose among equal paths (default: round-robin)',
      ).choices(PATH_POLICIES),
    )
    .option(
      '--reconnect-delay <time>',
      'between attempts to get a lost path back, in seconds (default 10)',
      seconds,
    )
    .option(
      '--ctrl-loss-tmo <time>',
      'a path that is lost for so long is given up, in seconds; 0: at once, -1: never (default 600)',
      secondsOrNever,
    )
    .option(
      '--fast-io-fail-tmo <time>',
      'I/O fails when all paths are lost for so long, in seconds; -1: it waits (default -1)',
      secondsOrNever,
    )
    .addOption(
      new Option(
        '--writes <policy>',
        'when a write that a lost path may still execute goes to another one (default: fenced)',
      ).choices(WRITES_POLICIES),
    );
}

export function multipathOptions(
  first: HostPort,
  nqn: string,
  flags: MultipathFlags,
): ConnectPathsOptions {
  // Address and port among them are those of the first path; each path has its own.
  const { sourceAddress, ...common } = connectOptions(first, nqn, flags);
  const optional = {
    discover: flags.discover,
    policy: flags.iopolicy,
    reconnectDelayMs: flags.reconnectDelay,
    ctrlLossMs: flags.ctrlLossTmo,
    fastIoFailMs: flags.fastIoFailTmo,
    writes: flags.writes,
  };
  const from = sourceAddress === undefined ? {} : { sourceAddress };
  return {
    ...common,
    paths: [first, ...(flags.path ?? [])].map((path) => ({ ...path, ...from })),
    ...given(optional),
  };
}

/** Tells what becomes of paths, a line each. */
export function notePaths(context: Pick<CliContext, 'note'>, subsystem: MultipathSubsystem): void {
  subsystem.on('pathState', ({ endpoint, from, to, reason }) => {
    context.note(`nvmeof: path ${endpoint}: ${from} -> ${to}${reason === '' ? '' : `: ${reason}`}`);
  });
  subsystem.on('anaChange', (endpoint, groups) => {
    const states = groups.map(({ id, state }) => `group ${id} ${state}`).join(', ');
    context.note(`nvmeof: path ${endpoint}: ${states}`);
  });
  subsystem.on('failing', (nsid, failing) => {
    const what = failing ? 'I/O fails: no path is left' : 'I/O is served again';
    context.note(`nvmeof: namespace ${nsid}: ${what}`);
  });
  const held = new Set<string>();
  subsystem.on('writesHeld', (endpoint, { cntlid, writes, reason }) => {
    if (writes === 0) return;
    held.add(endpoint);
    context.note(
      `nvmeof: ${writes} ${writes === 1 ? 'write waits' : 'writes wait'} for the end of controller ${cntlid} at ${endpoint}: ${reason}`,
    );
  });
  subsystem.on('writesReleased', (endpoint, outcome) => {
    if (!held.delete(endpoint)) return;
    context.note(`nvmeof: path ${endpoint}: its writes go on: ${outcome.guarantee}`);
  });
  const warn = (error: Error): void => {
    context.note(`nvmeof: ${error.message}`);
  };
  subsystem.on('warning', warn);
  subsystem.discovery?.on('warning', warn);
  subsystem.discovery?.on('serviceState', ({ endpoint, from, to, reason }) => {
    const why = reason === '' ? '' : `: ${reason}`;
    context.note(`nvmeof: discovery service ${endpoint}: ${from} -> ${to}${why}`);
  });
}

/** Rejects when the last path has been given up. */
export function untilGivenUp(subsystem: MultipathSubsystem): Promise<never> {
  return new Promise((_, reject) => {
    const look = (): void => {
      const { paths } = subsystem;
      if (paths.length === 0 || paths.some(({ state }) => state !== 'failed')) return;
      const reasons = paths.map(({ endpoint, reason }) => `${endpoint}: ${reason}`).join('; ');
      reject(new Error(`every path was lost: ${reasons}`));
    };
    subsystem.on('pathState', look);
    look();
  });
}
