/**
 * Which discovery services are followed: those that were named, and those that their logs refer to, breadth first. Loops
 * and self-references end at a service that is there already; depth and number are limited, for the logs come from strangers.
 */
import type { FoundEndpoint } from './discovery-records.ts';

/** A named service has depth 0. */
export const REFERRAL_DEPTH_MAX = 4;
export const SERVICES_MAX = 32;

export interface ReachedService {
  readonly found: FoundEndpoint;
  /** ADDRESS:PORT of the service whose log refers to it; undefined: named by the user. */
  readonly referredBy: string | undefined;
}

export interface ReachedServices {
  readonly services: ReadonlyMap<string, ReachedService>;
  /** What was left out, for a person. */
  readonly problems: readonly string[];
}

type ReferralsOf = (endpoint: string) => readonly FoundEndpoint[];

/**
 * @param followed Whether a service is followed already: such come first, so that logs which change their order do not make
 *   connections come and go.
 */
export function reachServices(
  named: readonly FoundEndpoint[],
  referralsOf: ReferralsOf,
  followed: (endpoint: string) => boolean,
): ReachedServices {
  const services = new Map<string, ReachedService>(
    named.map((found) => [found.endpoint, { found, referredBy: undefined }]),
  );
  const problems: string[] = [];
  let level = [...services.keys()];
  for (let depth = 1; level.length > 0; depth += 1) {
    const next: string[] = [];
    for (const referredBy of level) {
      const fresh = referralsOf(referredBy).filter(({ endpoint }) => !services.has(endpoint));
      const [first] = fresh;
      if (first && depth > REFERRAL_DEPTH_MAX) {
        problems.push(
          `${referredBy} refers to ${first.endpoint}, which is not followed: more than ${REFERRAL_DEPTH_MAX} referrals one after another`,
        );
        continue;
      }
      fresh.sort((a, b) => Number(followed(b.endpoint)) - Number(followed(a.endpoint)));
      const room = Math.max(0, SERVICES_MAX - services.size);
      for (const found of fresh.slice(0, room)) {
        services.set(found.endpoint, { found, referredBy });
        next.push(found.endpoint);
      }
      if (fresh.length > room) {
        problems.push(
          `${referredBy} refers to more services than are followed: ${SERVICES_MAX} at most`,
        );
      }
    }
    level = next;
  }
  return { services, problems };
}
