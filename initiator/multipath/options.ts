/**
 * Options of a subsystem that is reached over several paths. Timers have the names and the meaning of nvme-cli, in
 * milliseconds. Everything is checked here, before the network is touched.
 */
import { PATHS_MAX } from '../../native/index.ts';
import type { PathPolicy } from '../../native/index.ts';
import { ArgumentError } from '../errors.ts';
import { resolveOptions } from '../options.ts';
import type { ConnectOptions, ResolvedOptions } from '../options.ts';
import type { WritesPolicy } from './fence.ts';

export interface PathSpec {
  /** Numeric IPv4 or IPv6 address of the target. */
  readonly address: string;
  /** Default 4420. */
  readonly port?: number;
  /** Our address on this path; as in `connect`. */
  readonly sourceAddress?: string;
  /** Taken before paths in the same ANA state that are not preferred. */
  readonly preferred?: boolean;
}

export interface MultipathOptions extends Omit<
  ConnectOptions,
  'address' | 'port' | 'sourceAddress' | 'pcapPath'
> {
  readonly paths: readonly PathSpec[];
  /** How commands choose among the best paths. Default 'round-robin'. */
  readonly policy?: PathPolicy;
  /** Between two attempts to connect a lost path; up to half less by chance. Default 10000. */
  readonly reconnectDelayMs?: number;
  /** A path that is lost for so long is given up; 0: at once; -1: never. Default 600000. */
  readonly ctrlLossMs?: number;
  /** I/O fails, instead of waiting, when all paths have been lost for so long; -1: not before they are given up. Default -1. */
  readonly fastIoFailMs?: number;
  /** What lets a write go to another path that the lost one may still execute: see `WritesPolicy`. Default 'fenced'. */
  readonly writes?: WritesPolicy;
}

export interface ResolvedPath {
  readonly spec: PathSpec;
  /** ADDRESS:PORT. */
  readonly endpoint: string;
  readonly connect: ConnectOptions;
}

export interface ResolvedMultipath {
  readonly nqn: string;
  readonly paths: readonly ResolvedPath[];
  readonly policy: PathPolicy;
  readonly reconnectDelayMs: number;
  /** Infinity: never. */
  readonly ctrlLossMs: number;
  readonly fastIoFailMs: number;
  readonly writes: WritesPolicy;
  /** Of the first path: what is the same on all of them. */
  readonly common: ResolvedOptions;
  /** Of the connect only: paths that come later, or come back, have nothing to do with it. */
  readonly signal: AbortSignal | undefined;
  readonly resolvePath: (spec: PathSpec) => ResolvedPath;
}

export const PATH_POLICIES: readonly PathPolicy[] = ['round-robin', 'queue-depth', 'numa'];
export const WRITES_POLICIES: readonly WritesPolicy[] = ['fenced', 'proven', 'immediate', 'never'];
const TIMER_MS_MAX = 0x7fff_ffff;

function timer(name: string, value: number | undefined, preset: number, least: number): number {
  const used = value ?? preset;
  if (!Number.isInteger(used) || used < least || used > TIMER_MS_MAX) {
    throw new ArgumentError(
      `${name} must be a whole number of milliseconds from ${least} to ${TIMER_MS_MAX}, not ${used}`,
    );
  }
  return used === -1 ? Infinity : used;
}

export function policyOf(policy: PathPolicy | undefined): PathPolicy {
  return word('policy', policy, PATH_POLICIES);
}

function word<T extends string>(name: string, value: T | undefined, words: readonly T[]): T {
  const used = value ?? words[0];
  if (used !== undefined && words.includes(used)) return used;
  throw new ArgumentError(`${name} must be ${words.join(', ')}, not ${String(used)}`);
}

export function resolveMultipath(options: MultipathOptions): ResolvedMultipath {
  const { paths, policy, reconnectDelayMs, ctrlLossMs, fastIoFailMs, writes, signal, ...connect } =
    options;
  if (paths.length === 0 || paths.length > PATHS_MAX) {
    throw new ArgumentError(`a subsystem has 1 to ${PATHS_MAX} paths, not ${paths.length}`);
  }
  const resolvePath = (spec: PathSpec): ResolvedPath => {
    const { address, port, sourceAddress } = spec;
    const own: ConnectOptions = {
      ...connect,
      address,
      ...(port === undefined ? {} : { port }),
      ...(sourceAddress === undefined ? {} : { sourceAddress }),
    };
    return { spec, endpoint: resolveOptions(own).endpoint, connect: own };
  };
  const resolved = paths.map(resolvePath);
  const twin = resolved.find(
    ({ endpoint }, index) => resolved.findIndex((each) => each.endpoint === endpoint) < index,
  );
  if (twin) throw new ArgumentError(`paths: ${twin.endpoint} is there twice`);
  const [first] = resolved as [ResolvedPath];
  return {
    nqn: options.nqn,
    paths: resolved,
    policy: policyOf(policy),
    reconnectDelayMs: timer('reconnectDelayMs', reconnectDelayMs, 10_000, 1),
    ctrlLossMs: timer('ctrlLossMs', ctrlLossMs, 600_000, -1),
    fastIoFailMs: timer('fastIoFailMs', fastIoFailMs, -1, -1),
    writes: word('writes', writes, WRITES_POLICIES),
    common: resolveOptions(first.connect),
    signal,
    resolvePath,
  };
}
