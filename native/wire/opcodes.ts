/**
 * Command opcodes (NVMe Base 2.1 figures "Opcodes for Admin/NVM commands", Fabrics command types). Bytes only; bits 1:0 of an
 * opcode, or of a Fabrics type, say which way data goes.
 */
export const AdminOpcode = {
  getLogPage: 0x02,
  identify: 0x06,
  abort: 0x08,
  setFeatures: 0x09,
  getFeatures: 0x0a,
  asyncEventRequest: 0x0c,
  keepAlive: 0x18,
  crossControllerReset: 0x38,
  fabrics: 0x7f,
} as const;

export const FabricsType = {
  propertySet: 0x00,
  connect: 0x01,
  propertyGet: 0x04,
  authenticationSend: 0x05,
  authenticationReceive: 0x06,
  disconnect: 0x08,
} as const;

export const IoOpcode = {
  flush: 0x00,
  write: 0x01,
  read: 0x02,
  writeUncorrectable: 0x04,
  compare: 0x05,
  writeZeroes: 0x08,
  datasetManagement: 0x09,
  verify: 0x0c,
  reservationRegister: 0x0d,
  reservationReport: 0x0e,
  reservationAcquire: 0x11,
  reservationRelease: 0x15,
  copy: 0x19,
} as const;

export type DataDirectionName = 'none' | 'toController' | 'toHost' | 'bidirectional';

/** Data direction as the low two bits of an opcode or Fabrics type say it. */
export function directionOf(code: number): DataDirectionName {
  return (['none', 'toController', 'toHost', 'bidirectional'] as const)[code & 3] ?? 'none';
}
