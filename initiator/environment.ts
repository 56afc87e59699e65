/**
 * What the initiator takes from its surroundings: the reactors, time, addresses, the host's name. Tests pass others.
 */
import { systemClock } from '../native/common/clock.ts';
import type { Clock } from '../native/common/clock.ts';
import { acquireRuntime } from '../native/shared-runtime.ts';
import type { RuntimeLease, RuntimeLeaseOptions } from '../native/shared-runtime.ts';
import { hostIdentity } from './host-identity.ts';
import type { HostIdentity, HostIdentityOptions } from './host-identity.ts';
import { numaDistance } from './multipath/numa.ts';
import type { NumaDistance } from './multipath/numa.ts';
import { systemSource } from './source-device.ts';
import type { SourceEnvironment } from './source-device.ts';

export interface Environment {
  readonly clock: Clock;
  readonly source: SourceEnvironment;
  readonly numaDistance: NumaDistance;
  acquire(options: RuntimeLeaseOptions): RuntimeLease;
  identity(options: HostIdentityOptions): HostIdentity;
}

export const systemEnvironment: Environment = {
  clock: systemClock,
  source: systemSource,
  numaDistance: numaDistance(),
  acquire: acquireRuntime,
  identity: (options) => hostIdentity(options),
};
