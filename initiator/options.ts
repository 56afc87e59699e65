/**
 * Options of `connect` and `discover`: their meaning, defaults and limits. Everything is checked here, before the
 * network is touched.
 */
import { formatAddress, formatEndpoint, parseAddress } from '../native/common/address.ts';
import type { Address, Endpoint } from '../native/common/address.ts';
import { messageOf } from '../native/common/errors.ts';
import { nqnProblem } from '../native/common/nqn.ts';
import type { DeviceOptions } from '../native/index.ts';
import { NVME_RDMA_PORT } from '../native/wire/fabrics.ts';
import { ArgumentError } from './errors.ts';

/** Where from, and how, whatever is connected to. */
export interface TransportOptions {
  /** Numeric IPv4 or IPv6 address of the target. */
  readonly address: string;
  /** Default 4420. */
  readonly port?: number;
  /** Our address. Default: the one routing gives; for a target on IPv4 loopback a free 127.x.y.z. */
  readonly sourceAddress?: string;
  readonly provider?: DeviceOptions['provider'];
  /** 256, 512, 1024, 2048, 4096. Default: what the interface carries. */
  readonly pathMtu?: number;
  readonly socketBufferBytes?: number;
  /** ICRC check of IPv4 packets on soft: 'full' needs CAP_NET_RAW. Default 'recovered'. */
  readonly icrc?: DeviceOptions['icrc'];
  /** Opens the device for `Controller.injectFaults`: for tests. */
  readonly faultInjection?: boolean;
  /** Writes every packet to this file. */
  readonly pcapPath?: string;
  /** Reactor cores, -1: not pinned. Default: those that run in this process, else one that is not pinned. */
  readonly cores?: readonly number[];
  /** Reactors never sleep. */
  readonly pollForever?: boolean;
  /** Host NQN and identifier. Default: /etc/nvme/hostnqn and hostid, else made once and kept. */
  readonly hostNqn?: string;
  readonly hostId?: string;
  /**
   * How long a packet waits for its acknowledgement before it is sent again: 4.096 µs × 2^n, the next above. The longest it may
   * take on a good day; a peer that stays silent is given up after 21 times that (docs/architecture.md). Default 67 on soft.
   */
  readonly ackTimeoutMs?: number;
  /** For each RDMA connection. Default 5000. */
  readonly connectTimeoutMs?: number;
  /** Ends the attempt; a live controller is not touched by it. */
  readonly signal?: AbortSignal;
}

export interface ConnectOptions extends TransportOptions {
  /** Subsystem NQN. */
  readonly nqn: string;
  /**
   * I/O queues, spread over the reactors. Default: one per reactor. The target may grant fewer: then `Controller.queuesAsked`
   * is more than there are.
   */
  readonly queues?: number;
  /** Entries of each I/O queue. Default 128. The target may grant fewer. */
  readonly depth?: number;
  /** Keep alive timeout; 0: off. Default 5000. */
  readonly keepAliveMs?: number;
  /** For each command that names no other; 0: none. Default 30000. */
  readonly commandTimeoutMs?: number;
}

export type DiscoverOptions = TransportOptions;

export const QUEUE_DEPTH_MAX = 1024;
export const QUEUE_COUNT_MAX = 128;
const KEEP_ALIVE_MS_MAX = 0xffff_ffff;
const ACK_TIMEOUT_MS_MAX = 8000;
const ACK_TIMEOUT_UNIT_MS = 0.004096;

/** Options with every default filled in. */
export interface ResolvedOptions {
  readonly target: Address;
  /** For native: without brackets. */
  readonly targetAddress: string;
  readonly port: number;
  /** For people. */
  readonly endpoint: string;
  readonly source: Address | undefined;
  readonly device: Omit<DeviceOptions, 'address'>;
  readonly cores: readonly number[] | undefined;
  readonly pollForever: boolean;
  readonly hostNqn: string | undefined;
  readonly hostId: string | undefined;
  readonly connectTimeoutMs: number;
  readonly signal: AbortSignal | undefined;
  readonly nqn: string;
  readonly queues: number | undefined;
  readonly depth: number;
  readonly keepAliveMs: number;
  readonly commandTimeoutMs: number;
}

function integer(
  name: string,
  value: number | undefined,
  preset: number,
  low: number,
  high: number,
): number {
  const used = value ?? preset;
  if (!Number.isInteger(used) || used < low || used > high) {
    throw new ArgumentError(`${name} must be a whole number from ${low} to ${high}, not ${used}`);
  }
  return used;
}

function address(name: string, text: string): Address {
  try {
    return parseAddress(text);
  } catch (cause) {
    throw new ArgumentError(`${name}: ${messageOf(cause)}`, { object: text, cause });
  }
}

/** Local ACK Timeout as connections carry it: the exponent (IBTA 12.7.34). */
function localAckTimeout(ms: number): number {
  if (!(ms >= 1 && ms <= ACK_TIMEOUT_MS_MAX)) {
    throw new ArgumentError(`ackTimeoutMs must be 1 to ${ACK_TIMEOUT_MS_MAX}, not ${ms}`);
  }
  return Math.ceil(Math.log2(ms / ACK_TIMEOUT_UNIT_MS));
}

function deviceOptions(options: TransportOptions): Omit<DeviceOptions, 'address'> {
  const { pathMtu, socketBufferBytes, icrc, pcapPath, faultInjection, ackTimeoutMs } = options;
  if (pathMtu !== undefined && ![256, 512, 1024, 2048, 4096].includes(pathMtu)) {
    throw new ArgumentError(`path MTU must be 256, 512, 1024, 2048 or 4096, not ${pathMtu}`);
  }
  return {
    provider: options.provider ?? 'auto',
    ...(pathMtu === undefined ? {} : { pathMtu }),
    ...(socketBufferBytes === undefined ? {} : { socketBufferBytes }),
    ...(icrc === undefined ? {} : { icrc }),
    ...(faultInjection === true ? { faultInjection } : {}),
    ...(pcapPath === undefined ? {} : { pcapPath }),
    ...(ackTimeoutMs === undefined ? {} : { localAckTimeout: localAckTimeout(ackTimeoutMs) }),
  };
}

export function resolveOptions(options: ConnectOptions): ResolvedOptions {
  const problem = nqnProblem(options.nqn);
  if (problem !== undefined) throw new ArgumentError(`subsystem NQN "${options.nqn}" ${problem}`);
  const target = address('target address', options.address);
  const endpoint: Endpoint = {
    address: target,
    port: integer('port', options.port, NVME_RDMA_PORT, 1, 65_535),
  };
  const { sourceAddress } = options;
  const queues =
    options.queues === undefined
      ? undefined
      : integer('queues', options.queues, 1, 1, QUEUE_COUNT_MAX);
  return {
    target,
    targetAddress: formatAddress(target),
    port: endpoint.port,
    endpoint: formatEndpoint(endpoint),
    source: sourceAddress === undefined ? undefined : address('source address', sourceAddress),
    device: deviceOptions(options),
    cores: options.cores,
    pollForever: options.pollForever ?? false,
    hostNqn: options.hostNqn,
    hostId: options.hostId,
    connectTimeoutMs: integer('connectTimeoutMs', options.connectTimeoutMs, 5000, 1, 600_000),
    signal: options.signal,
    nqn: options.nqn,
    queues,
    depth: integer('depth', options.depth, 128, 2, QUEUE_DEPTH_MAX),
    keepAliveMs: integer('keepAliveMs', options.keepAliveMs, 5000, 0, KEEP_ALIVE_MS_MAX),
    commandTimeoutMs: integer('commandTimeoutMs', options.commandTimeoutMs, 30_000, 0, 0x7fff_ffff),
  };
}
