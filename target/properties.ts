/**
 * The properties a host reads and writes on the admin queue (NVMe Base 2.1 section 3.1.4): which exist, their size, and what CAP and
 * VS say. What a write of CC does stands in controller.ts.
 */
import { viewOf } from '../native/wire/layout.ts';
import { Cap, Cc, CommandSetSelected, Crto, PropertyOffset, Vs } from '../native/wire/registers.ts';

/** CAP.TO and CRTO in 500 ms units: enabling takes no time, disabling waits for queues to drain. */
const READY_TIMEOUT = 30;

export const VERSION = Vs.encode({ major: 2, minor: 0, tertiary: 0 });

export interface PropertySource {
  /** Entries of an I/O queue. */
  readonly queueDepth: number;
  readonly cc: number;
  readonly csts: Uint8Array;
}

interface PropertyRow {
  readonly name: string;
  readonly offset: number;
  readonly size: 4 | 8;
  readonly writable: boolean;
  read(source: PropertySource): Uint8Array;
}

function cc32(value: number): Uint8Array {
  const bytes = new Uint8Array(4);
  viewOf(bytes).setUint32(0, value, true);
  return bytes;
}

const PROPERTIES: readonly PropertyRow[] = [
  {
    name: 'CAP',
    offset: PropertyOffset.cap,
    size: 8,
    writable: false,
    read: ({ queueDepth }) =>
      Cap.encode({
        mqes: queueDepth - 1,
        cqr: true,
        to: READY_TIMEOUT,
        // Bit 0: NVM command set; bit 6: one or more command sets, so that Identify speaks of them.
        css: 0b0100_0001,
        crms: 1,
      }),
  },
  { name: 'VS', offset: PropertyOffset.vs, size: 4, writable: false, read: () => VERSION },
  {
    name: 'CC',
    offset: PropertyOffset.cc,
    size: 4,
    writable: true,
    read: ({ cc }) => cc32(cc),
  },
  {
    name: 'CSTS',
    offset: PropertyOffset.csts,
    size: 4,
    writable: false,
    read: ({ csts }) => csts,
  },
  {
    name: 'CRTO',
    offset: PropertyOffset.crto,
    size: 4,
    writable: false,
    read: () => Crto.encode({ crwmt: READY_TIMEOUT }),
  },
];

const byOffset = new Map(PROPERTIES.map((row) => [row.offset, row]));

export function findProperty(offset: number): PropertyRow | undefined {
  return byOffset.get(offset);
}

/** The value as Property Get returns it. */
export function propertyValue(row: PropertyRow, source: PropertySource): bigint {
  const view = viewOf(row.read(source));
  return row.size === 8 ? view.getBigUint64(0, true) : BigInt(view.getUint32(0, true));
}

export type ControllerConfiguration = ReturnType<typeof Cc.decode>;

export function decodeCc(value: number): ControllerConfiguration {
  return Cc.decode(cc32(value));
}

/** log2 of the entry sizes: 64 and 16 bytes. */
const IO_SQES = 6;
const IO_CQES = 4;

/** Why a controller cannot be enabled with this configuration; undefined when it can. */
export function enableProblem(cc: ControllerConfiguration, discovery: boolean): string | undefined {
  const sets: readonly number[] = [CommandSetSelected.nvm, CommandSetSelected.allSupported];
  if (!sets.includes(cc.css)) return `CC.CSS ${cc.css}`;
  if (cc.mps !== 0) return `CC.MPS ${cc.mps}`;
  if (cc.ams !== 0) return `CC.AMS ${cc.ams}`;
  // A discovery controller has no I/O queues; hosts may leave these 0.
  if (discovery) return undefined;
  if (cc.iosqes !== IO_SQES) return `CC.IOSQES ${cc.iosqes}`;
  if (cc.iocqes !== IO_CQES) return `CC.IOCQES ${cc.iocqes}`;
  return undefined;
}
