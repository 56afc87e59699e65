/** A failover host whose namespace is reached over several paths. */
import { EventEmitter } from 'node:events';
import type { Environment } from '../../initiator/environment.ts';
import { connectPaths } from '../../initiator/index.ts';
import type {
  MultipathOptions,
  MultipathSubsystem,
  Namespace,
  PathView as Shown,
} from '../../initiator/index.ts';
import type { FailoverHost, FailoverHostEvents, PathState, PathView } from './host.ts';

/** A live path carries I/O in the ANA state optimized only, as long as another one is. */
function stateOf({ state, anaGroups }: Pick<Shown, 'state' | 'anaGroups'>): PathState {
  if (state === 'connecting') return 'connecting';
  if (state !== 'live') return 'lost';
  return anaGroups.every((group) => group.state === 'optimized') ? 'live' : 'standby';
}

export class SeveralPathsHost extends EventEmitter<FailoverHostEvents> implements FailoverHost {
  readonly io: Namespace;
  readonly #subsystem: MultipathSubsystem;

  private constructor(subsystem: MultipathSubsystem, nsid: number) {
    super();
    this.#subsystem = subsystem;
    this.io = subsystem.namespace(nsid);
    subsystem.on('pathState', ({ endpoint, reason }) => {
      this.#tell(endpoint, reason);
    });
    subsystem.on('anaChange', (endpoint, groups) => {
      this.#tell(endpoint, groups.map(({ id, state }) => `group ${id} ${state}`).join(', '));
    });
    subsystem.on('writesReleased', (endpoint, { guarantee }) => {
      this.#tell(endpoint, `writes that it lost go again: ${guarantee}`);
    });
  }

  /** Resolves when all paths are live. */
  static async connect(
    options: MultipathOptions,
    nsid: number,
    environment?: Environment,
  ): Promise<SeveralPathsHost> {
    const subsystem = await connectPaths(options, environment);
    try {
      await allLive(subsystem);
      return new SeveralPathsHost(subsystem, nsid);
    } catch (error) {
      await subsystem.disconnect();
      throw error;
    }
  }

  get paths(): readonly PathView[] {
    return this.#subsystem.paths.map((path) => ({ path: path.endpoint, state: stateOf(path) }));
  }

  get retries(): number {
    return this.#subsystem.counters()['multipath.failovers'] ?? 0;
  }

  close(): Promise<void> {
    return this.#subsystem.disconnect();
  }

  #tell(endpoint: string, reason: string): void {
    const path = this.#subsystem.paths.find((each) => each.endpoint === endpoint);
    if (path) this.emit('pathChanged', { path: endpoint, state: stateOf(path), reason });
  }
}

async function allLive(subsystem: MultipathSubsystem): Promise<void> {
  const done = (): boolean => subsystem.paths.every(({ state }) => state === 'live');
  if (done()) return;
  await new Promise<void>((resolve, reject) => {
    subsystem.on('pathState', ({ endpoint, to, reason }) => {
      if (to === 'failed') reject(new Error(`path ${endpoint}: ${reason}`));
      else if (done()) resolve();
    });
  });
}
