/**
 * Which of our addresses a connection leaves from, and the device opened on it. One address belongs to one process
 * (UDP port 4791), so a target on IPv4 loopback is met from a free 127.x.y.z, the same for all connections of a runtime
 * whose options it fits; everything else from the address that the kernel's routing would use. A device that this process
 * has open already is shared: each one more is another socket for its reactors to look at.
 */
import { randomInt } from 'node:crypto';
import { createSocket } from 'node:dgram';
import { formatAddress, isLoopback, parseAddress, sameAddress } from '../native/common/address.ts';
import type { Address } from '../native/common/address.ts';
import { messageOf } from '../native/common/errors.ts';
import type { DeviceOptions } from '../native/index.ts';
import type { Runtime } from '../native/runtime.ts';
import { DeviceInUseError, ProviderUnavailableError } from '../native/shared-runtime.ts';
import type { DeviceLease, RuntimeLease } from '../native/shared-runtime.ts';
import { ConnectError } from './errors.ts';

const LOOPBACK_ATTEMPTS = 32;
const ROCE_PORT = 4791;

export interface SourceRequest {
  readonly target: Address;
  readonly source: Address | undefined;
  readonly device: Omit<DeviceOptions, 'address'>;
}

/** Replaced in tests. */
export interface SourceEnvironment {
  readonly routedAddress: (target: Address) => Promise<string>;
  readonly randomLoopback: () => string;
}

/** What the kernel puts as source on a packet to `target`: the local address of a connected socket. No packet is sent. */
async function routedAddress(target: Address): Promise<string> {
  const socket = createSocket(target.family === 4 ? 'udp4' : 'udp6');
  try {
    await new Promise<void>((resolve, reject) => {
      socket.once('error', reject);
      socket.connect(ROCE_PORT, formatAddress(target), () => {
        resolve();
      });
    });
    const { address } = socket.address();
    // A link-local source needs the zone that its target names.
    return target.zone !== undefined && address.startsWith('fe80:') && !address.includes('%')
      ? `${address}%${target.zone}`
      : address;
  } finally {
    socket.close();
  }
}

/** 127.0.x.y is left to people; the last byte is neither 0 nor 255. */
function randomLoopback(): string {
  return `127.${randomInt(1, 255)}.${randomInt(0, 256)}.${randomInt(1, 255)}`;
}

export const systemSource: SourceEnvironment = { routedAddress, randomLoopback };

function codeOf(error: unknown): string {
  const code = (error as { readonly code?: unknown } | null)?.code;
  return typeof code === 'string' ? code : '';
}

/** A provider that is not there is the fault of the option, not of the address. */
function cannotOpen(address: string, error: unknown): ConnectError | ProviderUnavailableError {
  if (error instanceof ProviderUnavailableError) return error;
  return new ConnectError(
    'CONNECT_SOURCE_ADDRESS',
    `cannot use ${address} as source address: ${messageOf(error)}`,
    { object: address, cause: error },
  );
}

/** The loopback addresses that connections of a runtime left from. */
const loopbacks = new WeakMap<Runtime, Set<string>>();

function* loopbackCandidates(known: ReadonlySet<string>, random: () => string): Generator<string> {
  yield* known;
  for (let attempt = 0; attempt < LOOPBACK_ATTEMPTS; attempt += 1) yield random();
}

function openLoopback(
  lease: RuntimeLease,
  request: SourceRequest,
  environment: SourceEnvironment,
): DeviceLease {
  const known = loopbacks.get(lease.runtime) ?? new Set();
  loopbacks.set(lease.runtime, known);
  let last: unknown;
  let address = '';
  for (address of loopbackCandidates(known, environment.randomLoopback)) {
    // The target's own address would be shared, or taken from a target that starts later.
    if (sameAddress(parseAddress(address), request.target)) continue;
    try {
      const device = lease.openDevice({ ...request.device, address });
      known.add(address);
      return device;
    } catch (error) {
      last = error;
      const taken = codeOf(error) === 'EADDRINUSE' || error instanceof DeviceInUseError;
      if (!taken) break;
    }
  }
  throw cannotOpen(address, last ?? new Error('no free loopback address was found'));
}

export async function openSourceDevice(
  lease: RuntimeLease,
  request: SourceRequest,
  environment: SourceEnvironment = systemSource,
): Promise<DeviceLease> {
  const { target, source, device } = request;
  if (!source && target.family === 4 && isLoopback(target)) {
    return openLoopback(lease, request, environment);
  }
  let address: string;
  try {
    address = source ? formatAddress(source) : await environment.routedAddress(target);
  } catch (error) {
    const { message, code } = { message: messageOf(error), code: codeOf(error) };
    throw new ConnectError(
      'CONNECT_NO_ANSWER',
      `this host has no way to ${formatAddress(target)}: ${message}; check ip route`,
      { object: code, cause: error },
    );
  }
  try {
    return lease.openDevice({ ...device, address });
  } catch (error) {
    throw cannotOpen(address, error);
  }
}
