/** The kernel's target in a guest, through its configfs: subsystems, namespaces, ports. */
import type { Guest } from './guest.ts';

const ROOT = '/sys/kernel/config/nvmet';

export class Nvmet {
  readonly #guest: Guest;

  private constructor(guest: Guest) {
    this.#guest = guest;
  }

  static async prepare(guest: Guest): Promise<Nvmet> {
    await guest.run('modprobe -a nvmet nvmet-rdma');
    return new Nvmet(guest);
  }

  /** A subsystem that every host may use. */
  async addSubsystem(nqn: string): Promise<void> {
    await this.#guest.run(`mkdir ${ROOT}/subsystems/${nqn}
      echo 1 >${ROOT}/subsystems/${nqn}/attr_allow_any_host`);
  }

  /** A namespace on a file or block device of the guest. */
  async addNamespace(nqn: string, nsid: number, path: string): Promise<void> {
    const folder = `${ROOT}/subsystems/${nqn}/namespaces/${nsid}`;
    await this.#guest.run(`mkdir ${folder}
      printf %s ${path} >${folder}/device_path
      echo 1 >${folder}/enable`);
  }

  async enableNamespace(nqn: string, nsid: number, enable: boolean): Promise<void> {
    await this.#guest.run(
      `echo ${enable ? 1 : 0} >${ROOT}/subsystems/${nqn}/namespaces/${nsid}/enable`,
    );
  }

  /** An RDMA port that offers these subsystems. */
  async addPort(id: number, address: string, port: number, nqns: readonly string[]): Promise<void> {
    const folder = `${ROOT}/ports/${id}`;
    await this.#guest.run(`mkdir ${folder}
      echo rdma >${folder}/addr_trtype
      echo ${address.includes(':') ? 'ipv6' : 'ipv4'} >${folder}/addr_adrfam
      echo ${address} >${folder}/addr_traddr
      echo ${port} >${folder}/addr_trsvcid`);
    for (const nqn of nqns) await this.offer(id, nqn);
  }

  /** Puts a subsystem on a port: the first one makes it listen. */
  async offer(id: number, nqn: string): Promise<void> {
    await this.#guest.run(`ln -s ${ROOT}/subsystems/${nqn} ${ROOT}/ports/${id}/subsystems/${nqn}`);
  }

  /** Takes it off the port again; its controllers are closed. */
  async withdraw(id: number, nqn: string): Promise<void> {
    await this.#guest.run(`rm ${ROOT}/ports/${id}/subsystems/${nqn}`);
  }

  /** State of an ANA group at a port; group 1 is there without being made. */
  async setAnaState(port: number, group: number, state: string): Promise<void> {
    await this.#guest.run(`echo ${state} >${ROOT}/ports/${port}/ana_groups/${group}/ana_state`);
  }

  /** Removes everything. */
  async clear(): Promise<void> {
    await this.#guest.run(`cd ${ROOT}
      rm -f ports/*/subsystems/* subsystems/*/allowed_hosts/*
      for folder in ports/* subsystems/*/namespaces/* subsystems/* hosts/*; do
        [ ! -d $folder ] || rmdir $folder
      done`);
  }
}
