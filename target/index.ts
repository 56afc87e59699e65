/**
 * Public face of the target: `import { Target } from 'nvmeof/target'`.
 */
export { Target } from './target.ts';
export type { ControllerView, StartOptions } from './target.ts';
export { formatConfig, loadConfig, parseConfig, saveConfig } from './config.ts';
export type {
  NamespaceConfig,
  NamespaceOptions,
  PortConfig,
  PortOptions,
  SubsystemConfig,
  SubsystemOptions,
  TargetConfig,
  TargetOptions,
} from './config.ts';
export { parseExport } from './export-string.ts';
export type { ExportString } from './export-string.ts';
export type { ControllerSummary, QueueSummary, TargetEvents } from './events.ts';
export type { HostRules } from './host-access.ts';
export type { Log } from './log.ts';
export { leastLoaded } from './placement.ts';
export type { PlacementRule, PlacementView } from './placement.ts';
export type { QueueReport, ReactorReport, TargetStatistics } from './statistics.ts';
export type { Counters } from '../native/common/counters.ts';
export { NO_FAULTS, applyFaults } from '../native/common/faults.ts';
export type { FaultInjection, FaultRule, Faults } from '../native/common/faults.ts';
export { NvmeofError, NvmeStatusError } from '../native/common/errors.ts';
