/**
 * `rdma_peer` (native/test/peer): the other side of rdma-core's programs and of perftest, on the soft provider, outside
 * the guests.
 */
import { execFile } from 'node:child_process';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { expect } from 'chai';
import { Process } from '../../support/processes.ts';
import type { Guest } from './guest.ts';
import type { Lab } from './scenario.ts';

const FOLDER = fileURLToPath(new URL('../../../native/test', import.meta.url));
const PROGRAM = join(FOLDER, process.env['BUILD'] ?? 'build-test', 'plain', 'rdma_peer');

/** Quick when nothing changed. */
export async function buildPeer(): Promise<void> {
  await promisify(execFile)('make', ['-C', FOLDER, '-j', '2', 'peer']);
}

/** What the program's last line says. */
export type Report = Readonly<Record<string, number>>;

export interface RunningPeer {
  /** Resolves when a server can be called. */
  listening(): Promise<unknown>;
  /** Its end, which must be a good one. */
  report(): Promise<Report>;
}

export function startPeer(lab: Lab, program: string, args: readonly string[]): RunningPeer {
  const peer = new Process([program, lab.address, ...args], {}, PROGRAM);
  lab.processes.push({ name: program, process: peer });
  lab.defer(() => peer.stop('SIGKILL'));
  return {
    listening: () => peer.waitFor(/listening/),
    report: async () => {
      const { code, stdout, stderr } = await peer.ended();
      expect(code, `${program} ${args.join(' ')}: ${stderr}`).to.equal(0);
      return JSON.parse(stdout.trimEnd().split('\n').at(-1) ?? '') as Report;
    },
  };
}

/** Which of the guest's GIDs is the RoCE v2 one of its address. */
export async function gidIndex(guest: Guest, address: string): Promise<string> {
  const found = await guest.run(`
    cd /sys/class/infiniband/rdma0/ports/1
    for index in $(seq 0 15); do
      [ "$(cat gids/$index)" = ${gidText(address)} ] || continue
      if [ "$(cat gid_attrs/types/$index)" = 'RoCE v2' ]; then echo $index; fi
    done`);
  const [index] = found.split('\n');
  if (!index) throw new Error(`${guest.name} has no GID of ${address}`);
  return index;
}

/** An address as sysfs writes its GID: eight groups of four digits; IPv4 is mapped into ::ffff:0:0/96. */
function gidText(address: string): string {
  const groups = address.includes(':')
    ? expand(address)
    : ['0', '0', '0', '0', '0', 'ffff', ...pairs(address.split('.').map(Number))];
  return groups.map((group) => group.padStart(4, '0')).join(':');
}

function expand(address: string): string[] {
  const [head = '', tail = ''] = address.split('::');
  const before = head.split(':').filter(Boolean);
  const after = tail.split(':').filter(Boolean);
  return [...before, ...Array<string>(8 - before.length - after.length).fill('0'), ...after];
}

function pairs([a = 0, b = 0, c = 0, d = 0]: readonly number[]): string[] {
  return [(a << 8) | b, (c << 8) | d].map((value) => value.toString(16));
}
