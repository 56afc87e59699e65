/**
 * The network of a run: one bridge in the namespace that run.sh made, one tap per guest on it. The bridge carries the
 * addresses that processes under test use. Everything goes with the namespace.
 */
import { execFileSync, spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

export const BRIDGE = 'lab0';
const MAC = '52:54:00:10:10:01';
export const families = ['IPv4', 'IPv6'] as const;
export type Family = (typeof families)[number];

/** Address of processes outside the guests. */
export const OUTSIDE: Readonly<Record<Family, string>> = { IPv4: '10.10.0.1', IPv6: 'fd10::1' };

/** RoCE path MTU -> MTU of the Ethernet that carries it. */
export const ethernetMtu: Readonly<Record<number, number>> = { 1024: 1500, 4096: 9000 };

export interface Port {
  readonly tap: string;
  readonly mac: string;
  /** The guest's own addresses. */
  readonly addresses: Readonly<Record<Family, string>>;
}

const taps: string[] = [];

function ip(...args: string[]): void {
  execFileSync('ip', args, { stdio: ['ignore', 'ignore', 'inherit'] });
}

/** A tap on the bridge for one more guest. */
export function addPort(): Port {
  if (taps.length === 0) {
    // An address of its own: else it changes with the ports, and a kernel that sees the address of a peer change gives
    // up connections to it.
    ip('link', 'add', BRIDGE, 'address', MAC, 'type', 'bridge', 'mcast_snooping', '0');
    ip('addr', 'add', `${OUTSIDE.IPv4}/24`, 'dev', BRIDGE);
    ip('addr', 'add', `${OUTSIDE.IPv6}/64`, 'dev', BRIDGE, 'nodad');
    ip('link', 'set', BRIDGE, 'up');
  }
  const number = taps.length + 2;
  const tap = `tap${number}`;
  ip('tuntap', 'add', 'dev', tap, 'mode', 'tap');
  ip('link', 'set', tap, 'master', BRIDGE, 'mtu', '9000', 'up');
  taps.push(tap);
  return {
    tap,
    mac: `52:54:00:10:10:${number.toString(16).padStart(2, '0')}`,
    addresses: { IPv4: `10.10.0.${number}`, IPv6: `fd10::${number.toString(16)}` },
  };
}

/** Of the bridge and all taps. */
export function setEthernetMtu(mtu: number): void {
  for (const tap of taps) ip('link', 'set', tap, 'mtu', String(mtu));
  ip('link', 'set', BRIDGE, 'mtu', String(mtu));
}

/** One more address of the processes outside, for a second target or initiator. */
export function addOutsideAddress(address: string): void {
  const [prefix, ...more] = address.includes(':') ? ['64', 'nodad'] : ['24'];
  ip('addr', 'replace', `${address}/${prefix}`, 'dev', BRIDGE, ...more);
}

export interface Capture {
  readonly file: string;
  stop(): Promise<void>;
}

/**
 * tcpdump on the bridge, where trains of packets that leave in one go (GSO) are still one; on a tap they are cut. By
 * default the headers of the last 100 MB: enough to see what went wrong. With `whole`, every byte.
 */
export async function capture(
  file: string,
  options: { whole?: boolean; device?: string } = {},
): Promise<Capture> {
  const limits = options.whole ? ['-s', '0'] : ['-s', '200', '-C', '50', '-W', '2'];
  const args = [
    '-i',
    options.device ?? BRIDGE,
    '-n',
    '-U',
    '--immediate-mode',
    '-Z',
    'root',
    ...limits,
    '-w',
    file,
  ];
  const child: ChildProcess = spawn('tcpdump', args, { stdio: ['ignore', 'ignore', 'pipe'] });
  const ended = once(child, 'exit');
  let said = '';
  await new Promise<void>((resolve, reject) => {
    child.stderr?.on('data', (chunk: Buffer) => {
      said += chunk.toString();
      if (said.includes('listening on')) resolve();
    });
    void ended.then(() => {
      reject(new Error(`tcpdump: ${said}`));
    });
  });
  return {
    file,
    stop: async () => {
      if (child.exitCode === null) child.kill('SIGINT');
      await ended;
    },
  };
}
