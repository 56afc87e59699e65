/** The kernel's NVMe host in a guest: nvme-cli, the block devices it makes, fio on them. */
import type { Guest } from './guest.ts';
import type { Lab } from './scenario.ts';
import { NQN, PORT } from './our-target.ts';

export interface ConnectOptions {
  readonly nqn?: string;
  readonly address?: string;
  readonly port?: number;
  /** More arguments of `nvme connect`. */
  readonly args?: string;
  readonly seconds?: number;
}

export class KernelHost {
  readonly guest: Guest;
  readonly #lab: Lab;

  private constructor(guest: Guest, lab: Lab) {
    this.guest = guest;
    this.#lab = lab;
  }

  /** Ready to connect; disconnects everything when the scenario is over. */
  static async prepare(lab: Lab, role = 'peer'): Promise<KernelHost> {
    const { guest } = await lab.takeGuest(role);
    await guest.run('modprobe nvme-rdma');
    lab.defer(() =>
      guest.alive
        ? guest.run(
            'umount -q /mnt 2>/dev/null || true; nvme disconnect-all; ! ls /sys/class/nvme | grep .',
            60,
          )
        : undefined,
    );
    return new KernelHost(guest, lab);
  }

  fabric(options: ConnectOptions = {}): string {
    const { address = this.#lab.address, port = PORT } = options;
    return `-t rdma -a ${address} -s ${port}`;
  }

  connectCommand(options: ConnectOptions = {}): string {
    return `nvme connect ${this.fabric(options)} -n ${options.nqn ?? NQN} ${options.args ?? ''}`;
  }

  /** Connects; returns the controller's name (nvme0). */
  async connect(options: ConnectOptions = {}): Promise<string> {
    const { nqn = NQN, seconds = 60 } = options;
    await this.guest.run(this.connectCommand(options), seconds);
    return (await this.guest.run(`${controllerOf(nqn)} | tail -n 1`)).trim();
  }

  /** Connects, and waits for the block device of one namespace: /dev/nvme0n1. */
  async connectDevice(options: ConnectOptions = {}, nsid = 1): Promise<string> {
    await this.connect(options);
    return this.device(options.nqn, nsid);
  }

  /** The block device of a namespace, once it is there. */
  async device(nqn = NQN, nsid = 1): Promise<string> {
    // Under native multipath a path has a disk of its own, which has no device file.
    const name = await this.guest.until(
      `for disk in /sys/block/nvme*; do
         [ "$(cat $disk/device/subsysnqn 2>/dev/null)" = ${nqn} ] || continue
         [ "$(cat $disk/nsid)" = ${nsid} ] && [ -b /dev/\${disk##*/} ] && echo /dev/\${disk##*/} && exit 0
       done
       exit 1`,
    );
    return name.trim();
  }

  async disconnect(nqn = NQN, seconds = 60): Promise<void> {
    await this.guest.run(`nvme disconnect -n ${nqn} && ! ${controllerOf(nqn)} | grep .`, seconds);
  }

  /** `live`, `connecting`, `deleting` … */
  async state(controller: string): Promise<string> {
    return (await this.guest.run(`cat /sys/class/nvme/${controller}/state`)).trim();
  }

  async waitForState(controller: string, state: string, seconds = 60): Promise<void> {
    await this.guest.until(`grep -qx ${state} /sys/class/nvme/${controller}/state`, seconds);
  }

  /** fio with direct I/O on libaio; one that finds other data than it wrote fails. */
  async fio(device: string, args: string, seconds = 120): Promise<string> {
    return this.guest.run(
      `cd /tmp && fio --name=job --filename=${device} --ioengine=libaio --direct=1 --randrepeat=0 ${args}`,
      seconds,
    );
  }
}

/** Prints the names of the controllers of a subsystem. */
function controllerOf(nqn: string): string {
  return `{ for c in /sys/class/nvme/nvme*; do
    [ -e $c ] && [ "$(cat $c/subsysnqn 2>/dev/null)" = ${nqn} ] && echo \${c##*/}; done; true; }`;
}
