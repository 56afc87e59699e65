/**
 * Fabrics commands on a connected queue: Property Get, Property Set, Disconnect, and the refusal of a second Connect (NVMe Base 2.1
 * section 6). The first Connect of a queue is in connect.ts.
 */
import {
  ConnectCommand,
  DisconnectCommand,
  PropertyGetCommand,
  PropertySetCommand,
} from '../native/wire/fabrics.ts';
import { FabricsType } from '../native/wire/opcodes.ts';
import { PropertyOffset } from '../native/wire/registers.ts';
import { Status } from '../native/wire/status.ts';
import { fail, isFailure, reply } from './outcome.ts';
import type { Failure } from './outcome.ts';
import { findProperty, propertyValue } from './properties.ts';
import type { CommandRow, Prepared, Request } from './request.ts';

/** Byte of ATTRIB in both property commands. */
const ATTRIB = 40;

type Row = NonNullable<ReturnType<typeof findProperty>>;

/** ATTRIB 0 means four bytes, 1 eight. */
function checkedProperty(size: number, reserved: number, offset: number): Row | Failure {
  const row = findProperty(offset);
  if (!row) {
    return fail(
      Status.invalidField,
      PropertyGetCommand.offsets.ofst,
      `no property at ${offset.toString(16)}h`,
    );
  }
  if (reserved !== 0 || size !== (row.size === 8 ? 1 : 0)) {
    return fail(Status.invalidField, ATTRIB, `${row.name} has ${row.size} bytes`);
  }
  return row;
}

function prepareGet({ sqe, controller }: Request): Prepared | Failure {
  const { size, attribReserved, ofst } = PropertyGetCommand.decode(sqe);
  const row = checkedProperty(size, attribReserved, ofst);
  if (isFailure(row)) return row;
  return { length: 0, run: () => reply(propertyValue(row, controller)) };
}

function prepareSet({ sqe, controller }: Request): Prepared | Failure {
  const { size, attribReserved, ofst, value } = PropertySetCommand.decode(sqe);
  const row = checkedProperty(size, attribReserved, ofst);
  if (isFailure(row)) return row;
  if (row.offset !== PropertyOffset.cc) {
    return fail(
      Status.invalidField,
      PropertySetCommand.offsets.ofst,
      `${row.name} cannot be written`,
    );
  }
  return {
    length: 0,
    run: () => {
      controller.writeCc(Number(value & 0xffff_ffffn));
      return reply();
    },
  };
}

function prepareDisconnect({ sqe, queue }: Request): Prepared | Failure {
  const { recfmt } = DisconnectCommand.decode(sqe);
  if (recfmt !== 0) {
    return fail(
      Status.connectIncompatible,
      DisconnectCommand.offsets.recfmt,
      `record format ${recfmt}`,
    );
  }
  if (queue.state === 'admin') {
    return fail(Status.disconnectInvalidQueueType, undefined, 'Disconnect is for I/O queues');
  }
  return {
    length: 0,
    run: () => reply(),
    after: () => {
      queue.close();
    },
  };
}

function refuseConnect(): Failure {
  return fail(Status.commandSequence, ConnectCommand.offsets.fctype, 'the queue is connected');
}

const common = { nsid: 'own', whileDisabled: true, effects: 0 } as const;

export const FABRICS_COMMANDS: readonly CommandRow[] = [
  {
    ...common,
    code: FabricsType.propertySet,
    name: 'Property Set',
    direction: 'none',
    queues: 'admin',
    discovery: true,
    prepare: prepareSet,
  },
  {
    ...common,
    code: FabricsType.connect,
    name: 'Connect',
    direction: 'toController',
    queues: 'both',
    discovery: true,
    prepare: refuseConnect,
  },
  {
    ...common,
    code: FabricsType.propertyGet,
    name: 'Property Get',
    direction: 'none',
    queues: 'admin',
    discovery: true,
    prepare: prepareGet,
  },
  {
    ...common,
    code: FabricsType.disconnect,
    name: 'Disconnect',
    direction: 'none',
    queues: 'both',
    discovery: false,
    prepare: prepareDisconnect,
  },
];
