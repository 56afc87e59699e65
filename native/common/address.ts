/**
 * IP addresses and `ADDRESS[:PORT]` as people type them: IPv6 with or without brackets, zones, upper case, v4-mapped. Compared by
 * value. Names are not resolved here.
 */
import { isIPv4, isIPv6 } from 'node:net';
import { NvmeofError } from './errors.ts';

export interface Address {
  /** A v4-mapped IPv6 address counts as IPv4. */
  readonly family: 4 | 6;
  /** 16 bytes, IPv4 v4-mapped: as a RoCE GID. */
  readonly bytes: Uint8Array;
  /** Interface of a link-local address: 'eth0' of fe80::1%eth0. */
  readonly zone: string | undefined;
}

export interface Endpoint {
  readonly address: Address;
  readonly port: number;
}

const MAPPED = Uint8Array.of(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff);

function invalid(text: string, why: string): NvmeofError {
  return new NvmeofError('ADDRESS_INVALID', `"${text}" ${why}`, { object: text });
}

function bytesOfIpv6(text: string): Uint8Array {
  // A dotted tail is two groups.
  const dotted = /^(.*:)(\d+)\.(\d+)\.(\d+)\.(\d+)$/.exec(text);
  const group = (high: string | undefined, low: string | undefined): string =>
    (Number(high) * 256 + Number(low)).toString(16);
  const plain = dotted
    ? `${dotted[1] ?? ''}${group(dotted[2], dotted[3])}:${group(dotted[4], dotted[5])}`
    : text;
  const [head = '', tail] = plain.split('::');
  const groupsOf = (part: string): number[] =>
    part === '' ? [] : part.split(':').map((hex) => parseInt(hex, 16));
  const left = groupsOf(head);
  const right = tail === undefined ? [] : groupsOf(tail);
  const zeros = new Array<number>(8 - left.length - right.length).fill(0);
  return Uint8Array.from(
    [...left, ...zeros, ...right].flatMap((value) => [value >> 8, value & 0xff]),
  );
}

/** A numeric address, IPv6 with or without brackets. */
export function parseAddress(text: string): Address {
  const bare = /^\[(.*)\]$/.exec(text)?.[1] ?? text;
  if (isIPv4(bare) && bare === text) {
    return {
      family: 4,
      bytes: Uint8Array.from([...MAPPED, ...bare.split('.').map(Number)]),
      zone: undefined,
    };
  }
  const percent = bare.indexOf('%');
  const numeric = percent < 0 ? bare : bare.slice(0, percent);
  const zone = percent < 0 ? undefined : bare.slice(percent + 1);
  if (!isIPv6(numeric) || zone === '') {
    throw invalid(text, 'is not an IPv4 or IPv6 address');
  }
  const bytes = bytesOfIpv6(numeric);
  const mapped = MAPPED.every((byte, index) => bytes[index] === byte);
  return { family: mapped ? 4 : 6, bytes, zone };
}

function parsePort(text: string, whole: string): number {
  const port = Number(text);
  if (!/^\d{1,5}$/.test(text) || port < 1 || port > 65535) {
    throw invalid(whole, `has no valid port after the colon: 1 to 65535`);
  }
  return port;
}

/** `1.2.3.4`, `1.2.3.4:4420`, `::1`, `[::1]`, `[fe80::1%eth0]:4420`. A bare IPv6 address never carries a port. */
export function parseEndpoint(text: string, defaultPort: number): Endpoint {
  const bracketed = /^(\[[^\]]*\])(?::(.*))?$/.exec(text);
  const colon = text.indexOf(':');
  const single = colon >= 0 && colon === text.lastIndexOf(':');
  const [host, port] = bracketed
    ? [bracketed[1] ?? '', bracketed[2]]
    : single
      ? [text.slice(0, colon), text.slice(colon + 1)]
      : [text, undefined];
  return {
    address: parseAddress(host),
    port: port === undefined ? defaultPort : parsePort(port, text),
  };
}

/** Without brackets, shortest form (RFC 5952), IPv4 dotted. */
export function formatAddress(address: Address): string {
  if (address.family === 4) return Array.from(address.bytes.subarray(12)).join('.');
  const groups = Array.from(
    { length: 8 },
    (_, index) => (address.bytes[index * 2] ?? 0) * 256 + (address.bytes[index * 2 + 1] ?? 0),
  );
  let best = { start: -1, length: 1 };
  for (let start = 0; start < 8; start++) {
    let length = 0;
    while (start + length < 8 && groups[start + length] === 0) length++;
    if (length > best.length) best = { start, length };
  }
  const hex = (part: readonly number[]): string =>
    part.map((value) => value.toString(16)).join(':');
  const text =
    best.start < 0
      ? hex(groups)
      : `${hex(groups.slice(0, best.start))}::${hex(groups.slice(best.start + best.length))}`;
  return address.zone === undefined ? text : `${text}%${address.zone}`;
}

export function formatEndpoint({ address, port }: Endpoint): string {
  const text = formatAddress(address);
  return address.family === 4 ? `${text}:${port}` : `[${text}]:${port}`;
}

/** By value: `::ffff:127.0.0.1` equals `127.0.0.1`; zones count only when both name one. */
export function sameAddress(a: Address, b: Address): boolean {
  const zones = a.zone === undefined || b.zone === undefined || a.zone === b.zone;
  return zones && a.bytes.every((byte, index) => b.bytes[index] === byte);
}

/** 0.0.0.0 or ::. */
export function isWildcard({ family, bytes }: Address): boolean {
  return bytes.subarray(family === 4 ? 12 : 0).every((byte) => byte === 0);
}

export function isLoopback({ family, bytes }: Address): boolean {
  if (family === 4) return bytes[12] === 127;
  return bytes.subarray(0, 15).every((byte) => byte === 0) && bytes[15] === 1;
}
