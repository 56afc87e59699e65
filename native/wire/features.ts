/**
 * Features (NVMe Base 2.1 section 5.1.25 and 5.1.12): identifiers and the words of CDW11 and of the result. Bytes only.
 */
import { bits, flag, layout, u16, u32 } from './layout.ts';
import type { RecordOf } from './layout.ts';

export const FeatureId = {
  arbitration: 0x01,
  powerManagement: 0x02,
  temperatureThreshold: 0x04,
  errorRecovery: 0x05,
  volatileWriteCache: 0x06,
  numberOfQueues: 0x07,
  asyncEventConfiguration: 0x0b,
  keepAliveTimer: 0x0f,
  commandSetProfile: 0x19,
  hostIdentifier: 0x81,
  writeProtect: 0x84,
} as const;

export const FeatureSelect = { current: 0, default: 1, saved: 2, capabilities: 3 } as const;

/** CDW11 of Set Features and dword 0 of the result; counts are 0-based. */
export const NumberOfQueues = layout(4, { submission: u16(0), completion: u16(2) });
export type NumberOfQueues = RecordOf<typeof NumberOfQueues>;

const aec = u32(0);

/** CDW11 of Asynchronous Event Configuration; the notice bits equal those of OAES. */
export const AsyncEventConfiguration = layout(4, {
  smart: bits(aec, 0, 8),
  namespaceAttribute: flag(aec, 8),
  firmwareActivation: flag(aec, 9),
  telemetry: flag(aec, 10),
  anaChange: flag(aec, 11),
  crossControllerReset: flag(aec, 20),
  discoveryChange: flag(aec, 31),
});
export type AsyncEventConfiguration = RecordOf<typeof AsyncEventConfiguration>;

const vwc = u32(0);
export const VolatileWriteCache = layout(4, { wce: flag(vwc, 0) });

const hostIdentifier = u32(0);
/** CDW11 of Get Features Host Identifier: extended (16-byte) form. */
export const HostIdentifierSelect = layout(4, { exhid: flag(hostIdentifier, 0) });

const capabilities = u32(0);
/** Dword 0 of Get Features with SEL = supported capabilities. */
export const FeatureCapabilities = layout(4, {
  saveable: flag(capabilities, 0),
  namespaceSpecific: flag(capabilities, 1),
  changeable: flag(capabilities, 2),
});
