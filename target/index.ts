/**
 * Public face of the target: `import { Target } from 'nvmeof/target'`.
 */
export { Target } from './target.ts';
export type { StartOptions } from './target.ts';
export type { ControllerView, NamespaceView, PortView, SubsystemView } from './views.ts';
export type { DrainReport } from './drain.ts';
export { ANA_GROUP_MAX, ANA_STATE_NAMES } from './ana.ts';
export type { AnaRule, AnaStateName } from './ana.ts';
export type { AnaReport, AnaView } from './ana-access.ts';
export { formatConfig, loadConfig, parseConfig } from './config.ts';
export { saveConfig } from './save-config.ts';
export type {
  NamespaceConfig,
  NamespaceOptions,
  PortConfig,
  PortOptions,
  ReferralConfig,
  ReferralOptions,
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
export { applySteps, difference } from './reload.ts';
export { Gate } from './control/gate.ts';
export { ControlServer } from './control/server.ts';
export type { ControlOptions } from './control/server.ts';
export { LOG_LEVELS } from './control/method.ts';
export type { ControlTools, LogLevel, Service } from './control/method.ts';
