/**
 * Status codes (NVMe Base 2.1 section 4.2.3): one table from which typed errors, log lines and the C++ constants come. A status
 * value is SC | SCT << 8 without flags; a status field adds CRD, More and DNR as the door carries it (CQE bits 31:17).
 */

export interface StatusRow {
  /** SC | SCT << 8. */
  readonly value: number;
  readonly text: string;
}

const row = (sct: number, sc: number, text: string): StatusRow => ({
  value: sc | (sct << 8),
  text,
});

export const STATUS_TABLE = {
  // Generic command status.
  success: row(0, 0x00, 'Successful Completion'),
  invalidOpcode: row(0, 0x01, 'Invalid Command Opcode'),
  invalidField: row(0, 0x02, 'Invalid Field in Command'),
  commandIdConflict: row(0, 0x03, 'Command ID Conflict'),
  dataTransferError: row(0, 0x04, 'Data Transfer Error'),
  powerLoss: row(0, 0x05, 'Commands Aborted due to Power Loss Notification'),
  internalError: row(0, 0x06, 'Internal Error'),
  abortRequested: row(0, 0x07, 'Command Abort Requested'),
  sqDeleted: row(0, 0x08, 'Command Aborted due to SQ Deletion'),
  failedFused: row(0, 0x09, 'Command Aborted due to Failed Fused Command'),
  missingFused: row(0, 0x0a, 'Command Aborted due to Missing Fused Command'),
  invalidNamespace: row(0, 0x0b, 'Invalid Namespace or Format'),
  commandSequence: row(0, 0x0c, 'Command Sequence Error'),
  invalidSglSegment: row(0, 0x0d, 'Invalid SGL Segment Descriptor'),
  invalidSglCount: row(0, 0x0e, 'Invalid Number of SGL Descriptors'),
  sglDataLength: row(0, 0x0f, 'Data SGL Length Invalid'),
  sglMetadataLength: row(0, 0x10, 'Metadata SGL Length Invalid'),
  sglType: row(0, 0x11, 'SGL Descriptor Type Invalid'),
  invalidPrpOffset: row(0, 0x13, 'PRP Offset Invalid'),
  atomicWriteUnit: row(0, 0x14, 'Atomic Write Unit Exceeded'),
  operationDenied: row(0, 0x15, 'Operation Denied'),
  sglOffset: row(0, 0x16, 'SGL Offset Invalid'),
  hostIdInconsistent: row(0, 0x18, 'Host Identifier Inconsistent Format'),
  keepAliveExpired: row(0, 0x19, 'Keep Alive Timer Expired'),
  keepAliveInvalid: row(0, 0x1a, 'Keep Alive Timeout Invalid'),
  preemptAborted: row(0, 0x1b, 'Command Aborted due to Preempt and Abort'),
  sanitizeFailed: row(0, 0x1c, 'Sanitize Failed'),
  sanitizeInProgress: row(0, 0x1d, 'Sanitize In Progress'),
  namespaceWriteProtected: row(0, 0x20, 'Namespace is Write Protected'),
  commandInterrupted: row(0, 0x21, 'Command Interrupted'),
  transientTransport: row(0, 0x22, 'Transient Transport Error'),
  prohibitedByLockdown: row(0, 0x23, 'Command Prohibited by Command and Feature Lockdown'),
  adminMediaNotReady: row(0, 0x24, 'Admin Command Media Not Ready'),
  lbaOutOfRange: row(0, 0x80, 'LBA Out of Range'),
  capacityExceeded: row(0, 0x81, 'Capacity Exceeded'),
  namespaceNotReady: row(0, 0x82, 'Namespace Not Ready'),
  reservationConflict: row(0, 0x83, 'Reservation Conflict'),
  formatInProgress: row(0, 0x84, 'Format In Progress'),

  // Command specific status.
  invalidCompletionQueue: row(1, 0x00, 'Completion Queue Invalid'),
  invalidQueueId: row(1, 0x01, 'Invalid Queue Identifier'),
  invalidQueueSize: row(1, 0x02, 'Invalid Queue Size'),
  abortLimit: row(1, 0x03, 'Abort Command Limit Exceeded'),
  aerLimit: row(1, 0x05, 'Asynchronous Event Request Limit Exceeded'),
  invalidLogPage: row(1, 0x09, 'Invalid Log Page'),
  invalidFormat: row(1, 0x0a, 'Invalid Format'),
  featureNotSaveable: row(1, 0x0d, 'Feature Identifier Not Saveable'),
  featureNotChangeable: row(1, 0x0e, 'Feature Not Changeable'),
  featureNotNamespace: row(1, 0x0f, 'Feature Not Namespace Specific'),
  namespaceAttached: row(1, 0x18, 'Namespace Already Attached'),
  namespaceNotAttached: row(1, 0x1a, 'Namespace Not Attached'),
  invalidControllerList: row(1, 0x1c, 'Controller List Invalid'),
  invalidControllerId: row(1, 0x1f, 'Invalid Controller Identifier'),
  commandSetNotSupported: row(1, 0x29, 'I/O Command Set Not Supported'),
  crossControllerResetInProgress: row(1, 0x3f, 'Cross-Controller Reset in Progress'),
  crossControllerResetLogFull: row(1, 0x40, 'Cross-Controller Reset Log Page Full'),
  crossControllerResetLimit: row(1, 0x41, 'Cross-Controller Reset Limit Exceeded'),
  connectIncompatible: row(1, 0x80, 'Connect Incompatible Format'),
  connectBusy: row(1, 0x81, 'Connect Controller Busy'),
  connectInvalid: row(1, 0x82, 'Connect Invalid Parameters'),
  connectRestartDiscovery: row(1, 0x83, 'Connect Restart Discovery'),
  connectInvalidHost: row(1, 0x84, 'Connect Invalid Host'),
  disconnectInvalidQueueType: row(1, 0x85, 'Invalid Queue Type'),
  discoveryRestart: row(1, 0x90, 'Discover Restart'),
  authenticationRequired: row(1, 0x91, 'Authentication Required'),

  // Media and data integrity errors.
  writeFault: row(2, 0x80, 'Write Fault'),
  unrecoveredRead: row(2, 0x81, 'Unrecovered Read Error'),
  guardCheck: row(2, 0x82, 'End-to-end Guard Check Error'),
  applicationTagCheck: row(2, 0x83, 'End-to-end Application Tag Check Error'),
  referenceTagCheck: row(2, 0x84, 'End-to-end Reference Tag Check Error'),
  compareFailure: row(2, 0x85, 'Compare Failure'),
  accessDenied: row(2, 0x86, 'Access Denied'),
  deallocatedBlock: row(2, 0x87, 'Deallocated or Unwritten Logical Block'),

  // Path related status.
  internalPathError: row(3, 0x00, 'Internal Path Error'),
  anaPersistentLoss: row(3, 0x01, 'Asymmetric Access Persistent Loss'),
  anaInaccessible: row(3, 0x02, 'Asymmetric Access Inaccessible'),
  anaTransition: row(3, 0x03, 'Asymmetric Access Transition'),
  controllerPathError: row(3, 0x60, 'Controller Pathing Error'),
  hostPathError: row(3, 0x70, 'Host Pathing Error'),
  abortedByHost: row(3, 0x71, 'Command Aborted By Host'),
} as const satisfies Readonly<Record<string, StatusRow>>;

export type StatusName = keyof typeof STATUS_TABLE;

/** Status values by name: `Status.invalidField`. */
export const Status = Object.fromEntries(
  Object.entries(STATUS_TABLE).map(([name, { value }]) => [name, value]),
) as { readonly [K in StatusName]: number };

const SCT_NAMES = [
  'Generic Command Status',
  'Command Specific Status',
  'Media and Data Integrity Error',
  'Path Related Status',
] as const;

const byValue = new Map<number, { readonly name: StatusName; readonly text: string }>(
  Object.entries(STATUS_TABLE).map(([name, { value, text }]) => [
    value,
    { name: name as StatusName, text },
  ]),
);

/** A status field without phase bit, taken apart. */
export interface DecodedStatus {
  readonly sct: number;
  readonly sc: number;
  readonly crd: number;
  readonly more: boolean;
  readonly dnr: boolean;
  /** undefined for a code that is not in the table. */
  readonly name: StatusName | undefined;
  readonly text: string;
}

export const DNR = 1 << 14;
export const MORE = 1 << 13;

/** SC | SCT << 8 of a status field: without CRD, More, DNR. */
export function statusValue(field: number): number {
  return field & 0x7ff;
}

export function decodeStatus(field: number): DecodedStatus {
  const value = statusValue(field);
  const sct = value >> 8;
  const sc = value & 0xff;
  const known = byValue.get(value);
  const hex = sc.toString(16).padStart(2, '0');
  return {
    sct,
    sc,
    crd: (field >> 11) & 3,
    more: (field & MORE) !== 0,
    dnr: (field & DNR) !== 0,
    name: known?.name,
    text: known?.text ?? `${SCT_NAMES[sct] ?? `Status Code Type ${sct}`} ${hex}h`,
  };
}
