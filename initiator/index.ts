/**
 * The initiator as a library: `import { connect, discover } from 'nvmeof/initiator'`. Everything a user needs is
 * exported here; what is not exported may change.
 */
export { connect } from './connect.ts';
export { discover } from './discovery.ts';
export type { DiscoveredPath, DiscoveryLog } from './discovery.ts';
export type { ConnectOptions, DiscoverOptions, TransportOptions } from './options.ts';
export { connectPaths, followDiscovery } from './multipath/connect-paths.ts';
export type { ConnectPathsOptions } from './multipath/connect-paths.ts';
export { DiscoveredPaths } from './multipath/discovered-paths.ts';
export type {
  DiscoveryEvents,
  DiscoverySpec,
  ServiceChange,
  ServiceView,
} from './multipath/discovered-paths.ts';
export type { ServiceState } from './multipath/discovery-service.ts';
export { MultipathSubsystem } from './multipath/subsystem.ts';
export { PATH_POLICIES, WRITES_POLICIES } from './multipath/options.ts';
export type { MultipathOptions, PathSpec } from './multipath/options.ts';
export type { HeldWrites, MultipathEvents, PathChange, PathView } from './multipath/events.ts';
export type { PathState } from './multipath/path.ts';
export type { AnaGroup, AnaState } from './multipath/ana-log.ts';
export type { FenceOutcome, WritesPolicy } from './multipath/fence.ts';
export type { PathPolicy } from '../native/index.ts';
export type { Attachment } from './attachment.ts';
export { Controller } from './controller.ts';
export type {
  ControllerBenchOptions,
  ControllerEvents,
  ControllerState,
  QueueInfo,
} from './controller.ts';
export { Namespace } from './namespace.ts';
export type { IoOptions, ReadOptions, WriteOptions, WriteZeroesOptions } from './namespace.ts';
export type { NamespaceChange } from './namespace-set.ts';
export type { NamespaceFacts, NamespaceIds, SkippedNamespace } from './namespace-scan.ts';
export type { AsyncEvent } from './async-events.ts';
export { QUEUE_COUNT_MAX } from './options.ts';
export type { BlockRange } from './transfers.ts';
export type { RegisteredBuffer } from './buffers.ts';
export type { GetFeatureFields, LogPageFields } from './admin.ts';
export type { CommandResult } from './queue.ts';
export type { BenchResult, BenchSide } from '../native/index.ts';
export type { IdentifyController, IdentifyNamespace } from '../native/wire/identify.ts';
export type { StatusName } from '../native/wire/status.ts';
export type { Counters } from '../native/common/counters.ts';
export { NO_FAULTS, applyFaults } from '../native/common/faults.ts';
export type { FaultInjection, FaultRule, Faults } from '../native/common/faults.ts';
export { NvmeofError, NvmeStatusError } from '../native/common/errors.ts';
export {
  ArgumentError,
  CommandAbortedError,
  CommandTimeoutError,
  ConnectError,
  DisconnectedError,
  ProtocolError,
} from './errors.ts';
export type { ConnectReason } from './errors.ts';
