/**
 * UUIDs as text and as 16 bytes (RFC 9562 byte order), and the ones made from a name, which are always the same.
 */
import { createHash } from 'node:crypto';
import { isUuid } from './nqn.ts';
import { NvmeofError } from './errors.ts';

export const ZERO_UUID = '00000000-0000-0000-0000-000000000000';

export function parseUuid(text: string): Uint8Array {
  if (!isUuid(text)) {
    throw new NvmeofError('UUID_INVALID', `"${text}" is not a UUID`, { object: text });
  }
  return Uint8Array.from(Buffer.from(text.replaceAll('-', ''), 'hex'));
}

export function formatUuid(bytes: Uint8Array): string {
  const hex = Buffer.from(bytes.subarray(0, 16)).toString('hex');
  return [
    hex.slice(0, 8),
    hex.slice(8, 12),
    hex.slice(12, 16),
    hex.slice(16, 20),
    hex.slice(20),
  ].join('-');
}

/** Version 5 (RFC 9562 section 5.5): SHA-1 of a name space and a name. */
export function uuidFromName(space: string, name: string): string {
  const digest = createHash('sha1').update(parseUuid(space)).update(name, 'utf8').digest();
  const bytes = Uint8Array.from(digest.subarray(0, 16));
  bytes[6] = ((bytes[6] ?? 0) & 0x0f) | 0x50;
  bytes[8] = ((bytes[8] ?? 0) & 0x3f) | 0x80;
  return formatUuid(bytes);
}
