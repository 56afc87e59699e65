/**
 * The doctor's checks of the network: who holds the RoCEv2 port, socket buffers, MTUs, RDMA devices, and what may
 * stand between two hosts. Each takes a view of the machine and returns findings; none changes anything.
 */
import { fail, ok, warn } from './system-view.ts';
import type { Finding, SystemView } from './system-view.ts';

export const ROCE_PORT = 4791;
/** What one socket should be able to hold: a 208 KiB buffer keeps only a few large reads in flight. */
export const WANTED_SOCKET_BUFFER = 4 * 1024 * 1024;

export interface PortOwner {
  readonly address: string;
  /** 0: a socket of the kernel. */
  readonly inode: string;
  readonly pid?: number;
  readonly command?: string;
}

/** /proc/net/udp prints each 32-bit word of an address in host order. */
function addressFromHex(hex: string): string {
  const words = hex.match(/.{8}/g) ?? [];
  const bytes = words.flatMap((word) => (word.match(/../g) ?? []).reverse());
  if (bytes.length === 4) return bytes.map((byte) => parseInt(byte, 16)).join('.');
  const groups: string[] = [];
  for (let i = 0; i < bytes.length; i += 2) {
    groups.push(parseInt(`${bytes[i] ?? ''}${bytes[i + 1] ?? ''}`, 16).toString(16));
  }
  return groups.every((group) => group === '0') ? '::' : groups.join(':');
}

function processOfInode(
  view: SystemView,
  inode: string,
): { pid: number; command: string } | undefined {
  for (const pid of view.list('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    const folder = `/proc/${pid}/fd`;
    for (const fd of view.list(folder)) {
      if (view.link(`${folder}/${fd}`) !== `socket:[${inode}]`) continue;
      return { pid: Number(pid), command: view.read(`/proc/${pid}/comm`)?.trim() ?? '?' };
    }
  }
  return undefined;
}

/** Every UDP socket bound to `port`, with its process where that may be seen. */
export function portOwners(view: SystemView, port = ROCE_PORT): PortOwner[] {
  const owners: PortOwner[] = [];
  for (const table of ['/proc/net/udp', '/proc/net/udp6']) {
    for (const line of view.read(table)?.split('\n').slice(1) ?? []) {
      const fields = line.trim().split(/\s+/);
      const [hexAddress, hexPort] = fields[1]?.split(':') ?? [];
      const inode = fields[9];
      if (!hexAddress || !hexPort || !inode || parseInt(hexPort, 16) !== port) continue;
      const owner = inode === '0' ? undefined : processOfInode(view, inode);
      owners.push({ address: addressFromHex(hexAddress), inode, ...owner });
    }
  }
  return owners;
}

export function checkPort(view: SystemView): Finding[] {
  const subject = `UDP port ${ROCE_PORT}`;
  const owners = portOwners(view);
  const rxe = view.hasModule('rdma_rxe');
  if (rxe) {
    const message =
      'the kernel module rdma_rxe (Soft-RoCE) is loaded and owns the port on every address: ' +
      'the soft provider cannot be used, the verbs provider can at the addresses of its devices';
    const remedy =
      'for soft: sudo modprobe -r rdma_rxe   (or run in a network namespace of its own)';
    const devices = view.list('/sys/class/infiniband').length;
    return [devices > 0 ? warn(subject, message, remedy) : fail(subject, message, remedy)];
  }
  if (owners.length === 0) return [ok(subject, 'free')];
  return owners.map((owner) => {
    if (owner.inode === '0') {
      return fail(
        subject,
        `a kernel socket holds ${owner.address}`,
        'lsmod | grep rdma   shows the module; unload it, or use a network namespace',
      );
    }
    const wildcard = owner.address === '0.0.0.0' || owner.address === '::';
    const who =
      owner.pid === undefined
        ? 'a process of another user'
        : `process ${owner.pid} (${owner.command ?? '?'})`;
    const remedy =
      owner.pid === undefined
        ? `sudo ss -ulpn 'sport = :${ROCE_PORT}'   names it`
        : `kill ${owner.pid}   if it should not run`;
    return wildcard
      ? fail(subject, `${who} holds it on every address`, remedy)
      : warn(subject, `${who} holds ${owner.address}; other addresses are free`, remedy);
  });
}

export function checkSocketBuffers(view: SystemView): Finding[] {
  return (['rmem_max', 'wmem_max'] as const).map((name) => {
    const subject = `net.core.${name}`;
    const bytes = view.readNumber(`/proc/sys/net/core/${name}`);
    const remedy = `sudo sysctl -w net.core.${name}=${WANTED_SOCKET_BUFFER}`;
    if (bytes === undefined) return warn(subject, 'cannot be read here', remedy);
    if (bytes >= WANTED_SOCKET_BUFFER) return ok(subject, `${bytes} bytes`);
    return warn(subject, `${bytes} bytes: fewer large transfers can be in flight`, remedy);
  });
}

/** InfiniBand path MTUs; the largest that fits beside 96 bytes of headers is taken. */
export function pathMtuOf(interfaceMtu: number): number {
  return [4096, 2048, 1024, 512, 256].find((mtu) => mtu + 96 <= interfaceMtu) ?? 0;
}

export function checkInterfaces(view: SystemView): Finding[] {
  const findings: Finding[] = [];
  for (const name of view.list('/sys/class/net')) {
    const mtu = view.readNumber(`/sys/class/net/${name}/mtu`);
    if (mtu === undefined) continue;
    const state = view.read(`/sys/class/net/${name}/operstate`)?.trim() ?? 'unknown';
    const subject = `interface ${name}`;
    const pathMtu = pathMtuOf(mtu);
    const text = `MTU ${mtu}, RoCE path MTU ${pathMtu}, ${state}`;
    if (state === 'down') findings.push(ok(subject, `${text}: not used`));
    else if (pathMtu === 0) {
      findings.push(
        fail(subject, `MTU ${mtu} carries no RoCE packet`, `sudo ip link set ${name} mtu 1500`),
      );
    } else if (pathMtu < 4096) {
      const remedy = `sudo ip link set ${name} mtu 9000   (every switch and host on the way must agree)`;
      findings.push(warn(subject, `${text}; 4192 and more carries 4096`, remedy));
    } else findings.push(ok(subject, text));
  }
  return findings.length > 0
    ? findings
    : [warn('interfaces', 'none can be seen', 'mount /sys, or look with: ip link')];
}

const LIBRARIES = ['libibverbs.so.1', 'librdmacm.so.1'];
const LIBRARY_PATH = [
  ...['x86_64-linux-gnu', 'aarch64-linux-gnu'].map((abi) => `/usr/lib/${abi}`),
  ...['/usr/lib64', '/usr/lib', '/lib64', '/lib'],
];

/** What the verbs provider needs beside a device; without a device nobody needs it. */
function checkVerbs(view: SystemView): Finding {
  const subject = 'verbs provider';
  const missing = LIBRARIES.filter(
    (library) => !LIBRARY_PATH.some((folder) => view.exists(`${folder}/${library}`)),
  );
  if (missing.length > 0) {
    const remedy = 'sudo apt-get install ibverbs-providers librdmacm1';
    return warn(subject, `${missing.join(' and ')} not found; auto takes soft instead`, remedy);
  }
  if (!view.exists('/dev/infiniband/rdma_cm')) {
    return warn(subject, '/dev/infiniband/rdma_cm is missing', 'sudo modprobe rdma_ucm');
  }
  return ok(subject, 'libraries and /dev/infiniband/rdma_cm are there');
}

const EMPTY_GID = /^(0000:){7}0000$/;

export function checkRdmaDevices(view: SystemView): Finding[] {
  const devices = view.list('/sys/class/infiniband');
  if (devices.length === 0) {
    return [ok('RDMA devices', 'none; the soft provider needs none')];
  }
  const ports = devices.flatMap((device) => {
    const folder = `/sys/class/infiniband/${device}/ports`;
    return view.list(folder).map((port) => {
      const subject = `RDMA device ${device} port ${port}`;
      const state = view.read(`${folder}/${port}/state`)?.trim() ?? 'unknown';
      const gids = view
        .list(`${folder}/${port}/gids`)
        .map((index) => ({
          index,
          gid: view.read(`${folder}/${port}/gids/${index}`)?.trim() ?? '',
          type: view.read(`${folder}/${port}/gid_attrs/types/${index}`)?.trim() ?? '',
        }))
        .filter(({ gid }) => gid !== '' && !EMPTY_GID.test(gid));
      const roce = gids.filter(({ type }) => type === 'RoCE v2');
      const text = `${state}; GIDs: ${
        gids
          .map(({ index, gid, type }) => `${index} ${gid}${type ? ` (${type})` : ''}`)
          .join(', ') || 'none'
      }`;
      if (!state.includes('ACTIVE')) {
        return warn(subject, text, 'bring its network interface up: ip link show');
      }
      const ethernet = view.read(`${folder}/${port}/link_layer`)?.trim() === 'Ethernet';
      // iWARP has no RoCE GIDs, and needs none.
      const iwarp = view.read(`/sys/class/infiniband/${device}/node_type`)?.includes('RNIC');
      if (ethernet && roce.length === 0 && iwarp !== true) {
        const remedy = 'give its network interface an IP address; RoCE v2 GIDs come from addresses';
        return warn(subject, `${text}; no RoCE v2 GID`, remedy);
      }
      return ok(subject, text);
    });
  });
  return [checkVerbs(view), ...ports];
}

const SEARCH_PATH = ['/usr/sbin', '/sbin', '/usr/bin', '/bin'];

/** Only hints: rules cannot be read without privileges. */
export function checkFirewall(view: SystemView): Finding[] {
  const findings: Finding[] = [];
  const tools = ['nft', 'iptables'].filter((tool) =>
    SEARCH_PATH.some((folder) => view.exists(`${folder}/${tool}`)),
  );
  const filters = ['nf_tables', 'ip_tables'].filter((module) => view.hasModule(module));
  if (filters.length > 0) {
    const list =
      tools.includes('nft') || tools.length === 0 ? 'sudo nft list ruleset' : 'sudo iptables -S';
    findings.push(
      warn(
        'firewall',
        `packet filters are loaded (${filters.join(', ')}); UDP ${ROCE_PORT} must pass in both directions`,
        `${list}   shows the rules; to open: sudo nft add rule inet filter input udp dport ${ROCE_PORT} accept`,
      ),
    );
  } else {
    findings.push(ok('firewall', 'no packet filter module is loaded'));
  }
  if (view.hasModule('nf_nat')) {
    findings.push(
      warn(
        'NAT',
        'address translation is loaded; a translated packet fails its ICRC at the peer',
        'connect from and to addresses that are not translated (containers: --network host)',
      ),
    );
  } else {
    findings.push(ok('NAT', 'no address translation is loaded'));
  }
  return findings;
}
