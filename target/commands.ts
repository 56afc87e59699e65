/**
 * The admin commands of a controller, one row each, and the I/O commands that native runs. The commands-supported log, the
 * length and NSID checks and the discovery filter are derived from the rows.
 */
import { AdminOpcode, IoOpcode } from '../native/wire/opcodes.ts';
import { CommandEffect } from '../native/wire/logs.ts';
import { Status } from '../native/wire/status.ts';
import { prepareAbort } from './abort.ts';
import { AER_LIMIT } from './aer.ts';
import { prepareCrossControllerReset } from './cross-controller-reset.ts';
import { prepareGetFeatures, prepareSetFeatures } from './features.ts';
import { prepareIdentify } from './identify.ts';
import { prepareGetLogPage } from './log-pages.ts';
import { HELD, fail, reply } from './outcome.ts';
import type { Failure } from './outcome.ts';
import type { CommandRow, Prepared, Request } from './request.ts';

function prepareAsyncEventRequest(request: Request): Prepared | Failure {
  const { asyncEvents } = request.controller;
  if (asyncEvents.full) {
    return fail(Status.aerLimit, undefined, `${AER_LIMIT} event requests wait already`);
  }
  return {
    length: 0,
    run: () => {
      asyncEvents.request(request.tag, request.header.cid);
      return HELD;
    },
  };
}

function prepareKeepAlive({ controller: { keepAlive } }: Request): Prepared | Failure {
  if (keepAlive.timeoutMs === 0) {
    return fail(Status.keepAliveInvalid, undefined, 'the keep alive timer is off');
  }
  // Native has renewed the lease when it arrived.
  return { length: 0, run: () => reply() };
}

const common = { queues: 'admin', whileDisabled: false, effects: 0 } as const;

export const ADMIN_COMMANDS: readonly CommandRow[] = [
  {
    ...common,
    code: AdminOpcode.getLogPage,
    name: 'Get Log Page',
    direction: 'toHost',
    nsid: 'own',
    discovery: true,
    prepare: (request) => prepareGetLogPage(request),
  },
  {
    ...common,
    code: AdminOpcode.identify,
    name: 'Identify',
    direction: 'toHost',
    nsid: 'own',
    discovery: true,
    prepare: prepareIdentify,
  },
  {
    ...common,
    code: AdminOpcode.abort,
    name: 'Abort',
    direction: 'none',
    nsid: 'unused',
    discovery: false,
    prepare: prepareAbort,
  },
  {
    ...common,
    code: AdminOpcode.setFeatures,
    name: 'Set Features',
    direction: 'toController',
    nsid: 'own',
    discovery: true,
    effects: CommandEffect.controllerCapability,
    prepare: prepareSetFeatures,
  },
  {
    ...common,
    code: AdminOpcode.getFeatures,
    name: 'Get Features',
    direction: 'toHost',
    nsid: 'own',
    discovery: true,
    prepare: prepareGetFeatures,
  },
  {
    ...common,
    code: AdminOpcode.asyncEventRequest,
    name: 'Asynchronous Event Request',
    direction: 'none',
    nsid: 'unused',
    discovery: true,
    prepare: prepareAsyncEventRequest,
  },
  {
    ...common,
    code: AdminOpcode.keepAlive,
    name: 'Keep Alive',
    direction: 'none',
    nsid: 'unused',
    discovery: true,
    // The timer runs from Connect on, also while the controller is disabled.
    whileDisabled: true,
    prepare: prepareKeepAlive,
  },
  {
    ...common,
    code: AdminOpcode.crossControllerReset,
    name: 'Cross-Controller Reset',
    direction: 'none',
    nsid: 'unused',
    discovery: false,
    prepare: prepareCrossControllerReset,
  },
];

interface IoCommand {
  readonly code: number;
  readonly name: string;
  readonly effects: number;
}

/** Run by native; here for the logs. */
export const IO_COMMANDS: readonly IoCommand[] = [
  { code: IoOpcode.flush, name: 'Flush', effects: 0 },
  { code: IoOpcode.write, name: 'Write', effects: CommandEffect.logicalBlockContent },
  { code: IoOpcode.read, name: 'Read', effects: 0 },
  { code: IoOpcode.compare, name: 'Compare', effects: 0 },
  {
    code: IoOpcode.writeZeroes,
    name: 'Write Zeroes',
    effects: CommandEffect.logicalBlockContent,
  },
  {
    code: IoOpcode.datasetManagement,
    name: 'Dataset Management',
    effects: CommandEffect.logicalBlockContent,
  },
  { code: IoOpcode.verify, name: 'Verify', effects: 0 },
];

const byOpcode = new Map(ADMIN_COMMANDS.map((row) => [row.code, row]));

export function findAdminCommand(opcode: number): CommandRow | undefined {
  return byOpcode.get(opcode);
}
