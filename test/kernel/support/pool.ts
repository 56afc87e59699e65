/**
 * The guests of a run: booted when first asked for, kept for the scenarios that follow, given up after a scenario that
 * failed in them. MTU and RDMA device of a guest change in a second, so one guest serves all links.
 */
import { rmSync } from 'node:fs';
import { kernels, runFolder, type Kernel } from './environment.ts';
import { Guest, type Machine } from './guest.ts';
import { addPort, ethernetMtu, setEthernetMtu, type Port } from './network.ts';

export type Driver = 'rxe' | 'siw';

export interface Seat {
  readonly guest: Guest;
  readonly port: Port;
  /** What `rdma link add` was last done with. */
  link: string;
}

const seats = new Map<string, Seat>();
/** A port outlives the guest that was given up. */
const ports = new Map<string, Port>();
let booted = 0;

export function findKernel(name: string): Kernel {
  const kernel = kernels.find((candidate) => candidate.name === name);
  if (!kernel) throw new Error(`kernel ${name} is not set up`);
  return kernel;
}

/** The guest with this kernel and role, with its RDMA device on a link of this path MTU. */
export async function takeGuest(
  kernelName: string,
  role: string,
  pathMtu: number,
  driver: Driver = 'rxe',
  options: Machine = {},
): Promise<Seat> {
  const key = `${kernelName}-${role}`;
  let seat = seats.get(key);
  if (!seat?.guest.alive) {
    const port = ports.get(key) ?? addPort();
    ports.set(key, port);
    const name = `${key}-${(booted += 1)}`;
    const kernel = findKernel(kernelName);
    seat = { guest: await Guest.boot({ kernel, name, nets: [port], ...options }), port, link: '' };
    seats.set(key, seat);
    await seat.guest.run('modprobe -a ib_uverbs rdma_ucm');
  }
  await setLink(seat, pathMtu, driver);
  return seat;
}

async function setLink(seat: Seat, pathMtu: number, driver: Driver): Promise<void> {
  const mtu = ethernetMtu[pathMtu];
  if (mtu === undefined) throw new Error(`no Ethernet MTU for path MTU ${pathMtu}`);
  setEthernetMtu(mtu);
  const link = `${driver} ${mtu}`;
  if (seat.link === link) return;
  const { IPv4, IPv6 } = seat.port.addresses;
  const module = driver === 'rxe' ? 'rdma_rxe' : 'siw';
  await seat.guest.run(`
    modprobe ${module}
    for link in $(rdma link | sed -n 's/^link \\([^/]*\\).*/\\1/p'); do rdma link delete $link; done
    ip link set eth0 mtu ${mtu} up
    ip addr replace ${IPv4}/24 dev eth0
    ip addr replace ${IPv6}/64 dev eth0 nodad
    rdma link add rdma0 type ${driver} netdev eth0
    until rdma link show rdma0/1 | grep -q 'state ACTIVE'; do sleep 0.1; done`);
  seat.link = link;
}

export async function giveUp(guest: Guest): Promise<void> {
  for (const [key, seat] of seats) if (seat.guest === guest) seats.delete(key);
  await guest.kill();
}

export async function killAll(): Promise<void> {
  await Promise.all([...seats.values()].map(({ guest }) => guest.kill()));
  seats.clear();
  rmSync(runFolder, { recursive: true, force: true });
}
