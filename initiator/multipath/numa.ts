/**
 * How far a reactor's core is from the device behind a local address, as the firmware's table of NUMA nodes says. Read from
 * sysfs at each question: paths are few, and devices come and go. What is not known is as near as anything.
 */
import { readFileSync, readdirSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { parseAddress, sameAddress } from '../../native/common/address.ts';

/** Within one node, by ACPI's definition. */
export const LOCAL_DISTANCE = 10;
/** Native keeps a distance in a byte; 255 means unreachable. */
const DISTANCE_MAX = 255;

export interface LocalDevice {
  /** Our address on it. */
  readonly address: string;
  /** Such as mlx5_0; empty: no RDMA device is used. */
  readonly rdmaDevice: string;
}

/** `core` -1: not pinned. */
export type NumaDistance = (core: number, device: LocalDevice) => number;

/** Names of interfaces, and their addresses: what os.networkInterfaces() tells. */
export type Interfaces = Readonly<
  Record<string, readonly { readonly address: string }[] | undefined>
>;

function read(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return '';
  }
}

function number(text: string | undefined): number | undefined {
  return text !== undefined && /^\d{1,9}$/.test(text) ? Number(text) : undefined;
}

function nodeOfCore(root: string, core: number): number | undefined {
  if (core < 0) return undefined;
  try {
    const entries = readdirSync(join(root, `devices/system/cpu/cpu${core}`));
    const name = entries.find((entry) => /^node\d+$/.test(entry));
    return number(name?.slice('node'.length));
  } catch {
    return undefined;
  }
}

/** Does not throw: an interface that is being taken away may have anything. */
function has(address: string, entries: Interfaces[string]): boolean {
  const [wanted] = address.split('%');
  return (entries ?? []).some((entry) => {
    try {
      return sameAddress(parseAddress(entry.address), parseAddress(wanted ?? ''));
    } catch {
      return false;
    }
  });
}

function interfaceOf(address: string, interfaces: Interfaces): string | undefined {
  // Link-local addresses name their interface, and may be those of several.
  const zone = address.split('%')[1];
  if (zone !== undefined && interfaces[zone]) return zone;
  return Object.keys(interfaces).find((name) => has(address, interfaces[name]));
}

function nodeOfDevice(
  root: string,
  device: LocalDevice,
  interfaces: () => Interfaces,
): number | undefined {
  const { address, rdmaDevice } = device;
  if (rdmaDevice !== '') {
    return number(read(join(root, 'class/infiniband', rdmaDevice, 'device/numa_node')));
  }
  const name = interfaceOf(address, interfaces());
  if (name === undefined) return undefined;
  return number(read(join(root, 'class/net', name, 'device/numa_node')));
}

/** Columns of a node's row stand for the online nodes in rising order, not for 0, 1, 2, … */
function distanceBetween(root: string, from: number, to: number): number | undefined {
  const folder = join(root, 'devices/system/node');
  let entries: string[];
  try {
    entries = readdirSync(folder);
  } catch {
    return undefined;
  }
  const nodes = entries
    .filter((entry) => /^node\d+$/.test(entry))
    .map((entry) => Number(entry.slice('node'.length)))
    .sort((a, b) => a - b);
  const row = read(join(folder, `node${from}`, 'distance')).split(/\s+/);
  const column = nodes.indexOf(to);
  return row.length === nodes.length ? number(row[column]) : undefined;
}

export function numaDistance(
  root = '/sys',
  interfaces: () => Interfaces = networkInterfaces,
): NumaDistance {
  return (core, device) => {
    const from = nodeOfCore(root, core);
    if (from === undefined) return LOCAL_DISTANCE;
    const to = nodeOfDevice(root, device, interfaces);
    if (to === undefined) return LOCAL_DISTANCE;
    return Math.min(distanceBetween(root, from, to) ?? LOCAL_DISTANCE, DISTANCE_MAX);
  };
}
