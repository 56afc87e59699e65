/**
 * Where a device's packets go. One device writes one file: with ports on several addresses each gets a file of its own,
 * named by its address, because a file that two devices write is of no use to anybody.
 */
import { format, parse } from 'node:path';

/** 'disk.pcap' and '::1' → 'disk---1.pcap': the address before the extension, without what file systems dislike. */
function withAddress(path: string, address: string): string {
  const { dir, name, ext } = parse(path);
  return format({ dir, name: `${name}-${address.replace(/[:%/]/g, '-')}`, ext });
}

/**
 * `addresses` are those of the ports at the start, in canonical form. A single one gets the path as given; an address
 * that is added later gets its own name.
 */
export function captureFile(path: string, address: string, addresses: ReadonlySet<string>): string {
  const single = addresses.size === 1 && addresses.has(address);
  return single ? path : withAddress(path, address);
}
