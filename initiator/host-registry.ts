/**
 * The hosts that this process is at the moment. A host NQN has one host identifier and the other way round: targets take two NQNs
 * with one identifier for one host, and Linux hosts refuse such a pair.
 */
import { ArgumentError } from './errors.ts';
import type { HostIdentity } from './host-identity.ts';

interface Known {
  readonly identity: HostIdentity;
  users: number;
}

export class HostRegistry {
  readonly #byNqn = new Map<string, Known>();
  readonly #byId = new Map<string, Known>();

  /** Until what it returns is called. Throws an ArgumentError. */
  take(identity: HostIdentity): () => void {
    const { hostNqn, hostId } = identity;
    const known = this.#byNqn.get(hostNqn) ?? { identity, users: 0 };
    if (known.identity.hostId !== hostId) {
      throw new ArgumentError(
        `host identifier ${hostId}: the host ${hostNqn} is connected with the identifier ${known.identity.hostId}; give that one, or another host NQN`,
        { object: hostId },
      );
    }
    const owner = this.#byId.get(hostId) ?? known;
    if (owner !== known) {
      throw new ArgumentError(
        `host identifier ${hostId} is that of the host ${owner.identity.hostNqn}, which is connected; give ${hostNqn} another one, or none`,
        { object: hostId },
      );
    }
    known.users += 1;
    this.#byNqn.set(hostNqn, known);
    this.#byId.set(hostId, known);
    let over = false;
    return () => {
      if (over) return;
      over = true;
      known.users -= 1;
      if (known.users > 0) return;
      this.#byNqn.delete(hostNqn);
      this.#byId.delete(hostId);
    };
  }
}

/** Of this process. */
export const hosts = new HostRegistry();
