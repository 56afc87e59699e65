/**
 * What the initiator takes from its surroundings: the reactors, time, addresses, the host's name. Tests pass others.
 */
import { systemClock } from '../native/common/clock.ts';
import type { Clock } from '../native/common/clock.ts';
import { acquireRuntime } from '../native/shared-runtime.ts';
import type { RuntimeLease, RuntimeLeaseOptions } from '../native/shared-runtime.ts';
import { hostIdentity } from './host-identity.ts';
import type { HostIdentity, HostIdentityOptions } from './host-identity.ts';
import { systemSource } from './source-device.ts';
import type { SourceEnvironment } from './source-device.ts';

export interface Environment {
  readonly clock: Clock;
  readonly source: SourceEnvironment;
  acquire(options: RuntimeLeaseOptions): RuntimeLease;
  identity(options: HostIdentityOptions): HostIdentity;
}

export const systemEnvironment: Environment = {
  clock: systemClock,
  source: systemSource,
  acquire: acquireRuntime,
  identity: (options) => hostIdentity(options),
};
