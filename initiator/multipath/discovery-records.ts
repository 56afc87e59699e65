/**
 * What a discovery log says about one subsystem: where it is reached over RDMA, and which other discovery services are
 * referred to. Records come from a stranger: what cannot be connected to is left out, with the field that is wrong.
 * Endpoints are compared by value, whatever their spelling.
 */
import { isLoopback, isWildcard } from '../../native/common/address.ts';
import { formatAddress, formatEndpoint, parseAddress } from '../../native/common/address.ts';
import { parseEndpoint, sameAddress } from '../../native/common/address.ts';
import type { Address } from '../../native/common/address.ts';
import { NVME_RDMA_PORT } from '../../native/wire/fabrics.ts';
import { printable } from '../discovery.ts';
import type { DiscoveredPath, DiscoveryLog } from '../discovery.ts';

export interface FoundEndpoint {
  /** ADDRESS:PORT in its one canonical spelling. */
  readonly endpoint: string;
  /** Without brackets. */
  readonly address: string;
  readonly port: number;
}

export interface ServiceAnswer {
  /** GENCTR. */
  readonly generation: bigint;
  /** All records of the log. */
  readonly records: number;
  /** Of the wanted subsystem, each endpoint once. */
  readonly paths: readonly FoundEndpoint[];
  readonly referrals: readonly FoundEndpoint[];
  /** Records that would have counted but cannot be used, and why. */
  readonly problems: readonly string[];
}

export function endpointOf(address: Address, port: number): FoundEndpoint {
  return { endpoint: formatEndpoint({ address, port }), address: formatAddress(address), port };
}

/** Both are ADDRESS:PORT; a zone counts only when both name one. */
export function sameEndpoint(a: string, b: string): boolean {
  if (a === b) return true;
  const [one, other] = [parseEndpoint(a, NVME_RDMA_PORT), parseEndpoint(b, NVME_RDMA_PORT)];
  return one.port === other.port && sameAddress(one.address, other.address);
}

function isLinkLocal({ family, bytes }: Address): boolean {
  return family === 6 && bytes[0] === 0xfe && ((bytes[1] ?? 0) & 0xc0) === 0x80;
}

function isMulticast({ family, bytes }: Address): boolean {
  return family === 6 ? bytes[0] === 0xff : ((bytes[12] ?? 0) & 0xf0) === 0xe0;
}

/**
 * Where a record leads from here. A wildcard is the address that the service was reached at; a zone of another machine
 * means nothing on this one, so a link-local address is looked for where the service is.
 */
function locate(address: Address, reached: Address): Address | string {
  if (isWildcard(address)) return reached;
  const shown = formatAddress({ ...address, zone: undefined });
  if (isMulticast(address)) return `its TRADDR ${shown} is a multicast address`;
  if (isLoopback(address) && !isLoopback(reached)) {
    return `its TRADDR ${shown} is a loopback address, of another machine`;
  }
  if (!isLinkLocal(address)) return { ...address, zone: undefined };
  return reached.zone === undefined
    ? `its TRADDR ${shown} is link-local; name the service with its interface, as fe80::1%eth0`
    : { ...address, zone: reached.zone };
}

function useOf(record: DiscoveredPath, reached: Address): FoundEndpoint | string {
  if (record.problem !== undefined) return record.problem;
  if (record.addressFamily !== 'ipv4' && record.addressFamily !== 'ipv6') {
    return `its ADRFAM is ${record.addressFamily}; ipv4 and ipv6 can be connected to`;
  }
  const address = parseAddress(record.address);
  // A v4-mapped address counts as IPv4, and stands in an IPv6 record.
  if (record.addressFamily === 'ipv4' && address.family === 6) {
    return `its TRADDR ${record.address} is not of its ADRFAM, ipv4`;
  }
  if (record.secureChannelRequired) {
    return 'its TREQ requires a secure channel, which RDMA does not have';
  }
  const located = locate(address, reached);
  return typeof located === 'string' ? located : endpointOf(located, Number(record.service));
}

/** @param reached Address of the service that sent the log. */
export function answerOf(log: DiscoveryLog, nqn: string, reached: Address): ServiceAnswer {
  const paths = new Map<string, FoundEndpoint>();
  const referrals = new Map<string, FoundEndpoint>();
  const problems: string[] = [];
  const wanted = printable(nqn);
  log.paths.forEach((record, index) => {
    if (record.transport !== 'rdma') return;
    const referral = record.kind === 'referral';
    if (!referral && (record.kind !== 'subsystem' || record.nqn !== wanted)) return;
    const use = useOf(record, reached);
    if (typeof use === 'string') problems.push(`record ${index} is not used: ${use}`);
    else (referral ? referrals : paths).set(use.endpoint, use);
  });
  return {
    generation: log.generation,
    records: log.paths.length,
    paths: [...paths.values()],
    referrals: [...referrals.values()],
    problems,
  };
}
