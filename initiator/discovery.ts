/**
 * `discover`: asks a discovery controller which subsystems there are, and where. The log is what a stranger sent: its
 * record count is limited before anything is allocated, a log that keeps changing is read a bounded number of times,
 * and no answer is never taken for an empty answer.
 */
import { formatAddress, parseAddress } from '../native/common/address.ts';
import { nqnProblem } from '../native/common/nqn.ts';
import { DISCOVERY_NQN } from '../native/wire/fabrics.ts';
import {
  AddressFamily,
  DISCOVERY_ENTRY_BYTES,
  DiscoveryLogEntry,
  DiscoveryLogHeader,
  DiscoverySubtype,
  LogId,
  RdmaProvider,
  TransportType,
} from '../native/wire/logs.ts';
import type { DiscoveryLogEntry as WireEntry } from '../native/wire/logs.ts';
import { connectIn } from './connect.ts';
import type { Controller } from './controller.ts';
import { systemEnvironment } from './environment.ts';
import type { Environment } from './environment.ts';
import { ProtocolError } from './errors.ts';
import type { DiscoverOptions } from './options.ts';

export const DISCOVERY_RECORDS_MAX = 4096;
const READ_ATTEMPTS = 5;

export interface DiscoveredPath {
  readonly transport: 'rdma' | 'tcp' | 'fc' | 'loop' | 'unknown';
  readonly addressFamily: 'ipv4' | 'ipv6' | 'infiniband' | 'fc' | 'unknown';
  readonly kind: 'subsystem' | 'referral' | 'current' | 'unknown';
  readonly nqn: string;
  readonly address: string;
  /** TRSVCID, a port number for RDMA and TCP. */
  readonly service: string;
  readonly portId: number;
  readonly rdmaProvider: string | undefined;
  readonly secureChannelRequired: boolean;
  /** What is wrong with the record; such a path is shown and not connected to. */
  readonly problem: string | undefined;
}

export interface DiscoveryLog {
  readonly generation: bigint;
  readonly paths: readonly DiscoveredPath[];
}

function nameOf<T extends string>(
  table: Readonly<Record<string, number>>,
  names: Readonly<Record<string, T>>,
  value: number,
): T | 'unknown' {
  const key = Object.keys(table).find((name) => table[name] === value);
  return (key === undefined ? undefined : names[key]) ?? 'unknown';
}

const TRANSPORTS = { rdma: 'rdma', fibreChannel: 'fc', tcp: 'tcp', loop: 'loop' } as const;
const FAMILIES = {
  ipv4: 'ipv4',
  ipv6: 'ipv6',
  infiniband: 'infiniband',
  fibreChannel: 'fc',
} as const;
const KINDS = { referral: 'referral', nvm: 'subsystem', currentDiscovery: 'current' } as const;
const PROVIDERS = {
  none: 'none',
  infiniband: 'infiniband',
  roce: 'roce',
  rocev2: 'rocev2',
  iwarp: 'iwarp',
} as const;

function problemOf(entry: WireEntry, inet: boolean): string | undefined {
  const name = nqnProblem(entry.subnqn);
  if (name !== undefined) return `its NQN ${name}`;
  if (!inet) return undefined;
  try {
    parseAddress(entry.traddr.trim());
  } catch {
    return 'its TRADDR is no numeric address';
  }
  const text = entry.trsvcid.trim();
  return /^\d{1,5}$/.test(text) && Number(text) >= 1 && Number(text) <= 65_535
    ? undefined
    : 'its TRSVCID is no port number';
}

/** Control characters of a stranger do not reach a terminal. */
export function printable(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '?').trim();
}

export function decodeDiscoveryEntry(entry: WireEntry): DiscoveredPath {
  const transport = nameOf(TransportType, TRANSPORTS, entry.trtype);
  const addressFamily = nameOf(AddressFamily, FAMILIES, entry.adrfam);
  const inet = addressFamily === 'ipv4' || addressFamily === 'ipv6';
  const problem = problemOf(entry, inet);
  const address = printable(entry.traddr);
  return {
    transport,
    addressFamily,
    kind: nameOf(DiscoverySubtype, KINDS, entry.subtype),
    nqn: printable(entry.subnqn),
    address: inet && problem === undefined ? formatAddress(parseAddress(address)) : address,
    service: printable(entry.trsvcid),
    portId: entry.portid,
    rdmaProvider:
      transport === 'rdma' ? nameOf(RdmaProvider, PROVIDERS, entry.tsasRdmaPrtype) : undefined,
    secureChannelRequired: entry.treqSecureChannel === 1,
    problem,
  };
}

/** What reads a log page; a Controller, or a test. */
export type LogReader = Pick<Controller, 'getLogPage'>;

async function readHeader(reader: LogReader): Promise<DiscoveryLogHeader> {
  const page = await reader.getLogPage({ lid: LogId.discovery, bytes: DiscoveryLogHeader.size });
  const header = DiscoveryLogHeader.decode(page);
  if (header.recfmt !== 0) {
    throw new ProtocolError(`discovery log: RECFMT is ${header.recfmt}, only 0 is known`);
  }
  if (header.numrec > BigInt(DISCOVERY_RECORDS_MAX)) {
    throw new ProtocolError(
      `discovery log: NUMREC is ${header.numrec}, more than ${DISCOVERY_RECORDS_MAX} are refused`,
    );
  }
  return header;
}

/** Header, entries, header again, until the generation stayed the same (NVMe Base 2.1 section 5.1.12.3.1). */
export async function readDiscoveryLog(reader: LogReader): Promise<DiscoveryLog> {
  let before = await readHeader(reader);
  for (let attempt = 0; attempt < READ_ATTEMPTS; attempt += 1) {
    const count = Number(before.numrec);
    const paths: DiscoveredPath[] = [];
    for (let index = 0; index < count; index += 1) {
      const page = await reader.getLogPage({
        lid: LogId.discovery,
        bytes: DISCOVERY_ENTRY_BYTES,
        offset: DiscoveryLogHeader.size + index * DISCOVERY_ENTRY_BYTES,
      });
      paths.push(decodeDiscoveryEntry(DiscoveryLogEntry.decode(page)));
    }
    const after = await readHeader(reader);
    if (after.genctr === before.genctr && after.numrec === before.numrec) {
      return { generation: after.genctr, paths };
    }
    before = after;
  }
  throw new ProtocolError(`discovery log: GENCTR changed during each of ${READ_ATTEMPTS} readings`);
}

/** With another environment; `discover` uses the system's. */
export async function discoverIn(
  environment: Environment,
  options: DiscoverOptions,
): Promise<DiscoveryLog> {
  const controller = await connectIn(environment, {
    ...options,
    nqn: DISCOVERY_NQN,
    // Not a persistent connection: it is gone before any timeout.
    keepAliveMs: 0,
  });
  try {
    return await readDiscoveryLog(controller);
  } finally {
    await controller.disconnect();
  }
}

/** The discovery log of the target at an address. Nothing stays connected. */
export function discover(options: DiscoverOptions): Promise<DiscoveryLog> {
  return discoverIn(systemEnvironment, options);
}
