/**
 * From options to a subsystem over several paths: over those that are named, those that discovery services list, or both.
 */
import { unlessAborted } from '../../native/common/abort.ts';
import { PATHS_MAX } from '../../native/index.ts';
import { systemEnvironment } from '../environment.ts';
import type { Environment } from '../environment.ts';
import { ArgumentError, ConnectError } from '../errors.ts';
import { DiscoveredPaths } from './discovered-paths.ts';
import type { DiscoverySpec } from './discovered-paths.ts';
import type { FoundEndpoint } from './discovery-records.ts';
import { resolveMultipath } from './options.ts';
import type { MultipathOptions, PathSpec } from './options.ts';
import { MultipathSubsystem } from './subsystem.ts';

export interface ConnectPathsOptions extends Omit<MultipathOptions, 'paths'> {
  /** May be left out when there is `discover`. Discovery never removes these. */
  readonly paths?: readonly PathSpec[];
  /** Discovery services that are followed for as long as the subsystem is connected: see `followDiscovery`. */
  readonly discover?: readonly DiscoverySpec[];
}

function cancelled(cause: unknown): ConnectError {
  return new ConnectError('CONNECT_CANCELLED', 'the connect by discovery was cancelled', { cause });
}

/**
 * Connects to a subsystem, and resolves when one path is live; see `MultipathSubsystem`. Without `paths` those are taken
 * that the discovery services list: rejects when all of them have answered or failed, and none lists the subsystem.
 */
export async function connectPaths(
  options: ConnectPathsOptions,
  environment: Environment = systemEnvironment,
): Promise<MultipathSubsystem> {
  const { discover = [], paths = [], ...common } = options;
  const [service] = discover;
  if (!service) return MultipathSubsystem.connect({ ...common, paths }, environment);
  const { address, port } = service;
  const any = { address, ...(port === undefined ? {} : { port }) };
  const context = resolveMultipath({ ...common, paths: paths.length > 0 ? paths : [any] });
  const discovery = new DiscoveredPaths(environment, context, discover);
  try {
    let ours: readonly FoundEndpoint[] = [];
    if (paths.length === 0) {
      ours = (await unlessAborted(discovery.found(), options.signal, cancelled)).slice(
        0,
        PATHS_MAX,
      );
    }
    const found = ours.map((each): PathSpec => ({ address: each.address, port: each.port }));
    const subsystem = await MultipathSubsystem.connect(
      { ...common, paths: [...paths, ...found] },
      environment,
    );
    subsystem.discovery = discovery;
    discovery.follow(subsystem, ours);
    return subsystem;
  } catch (error) {
    await discovery.close();
    throw error;
  }
}

/**
 * From now on the subsystem has the paths that these discovery services list, and its own. Ends with
 * `MultipathSubsystem.disconnect`, or with `close` of what is returned; then the paths stay.
 */
export function followDiscovery(
  subsystem: MultipathSubsystem,
  services: readonly DiscoverySpec[],
): DiscoveredPaths {
  if (subsystem.discovery?.closed === false) {
    throw new ArgumentError(
      `${subsystem.nqn} follows discovery services already; close its discovery first`,
    );
  }
  const discovery = new DiscoveredPaths(subsystem.environment, subsystem.options, services);
  subsystem.discovery = discovery;
  discovery.follow(subsystem);
  return discovery;
}
