/** The kernel's target in a second guest with one namespace on two ports, on an address each. IPv4 alone. */
import type { AnaStateName } from '../../../target/index.ts';
import type { Guest } from './guest.ts';
import { addNullBlock, removeNullBlock } from './null-block.ts';
import { Nvmet } from './nvmet.ts';
import { NQN, PORT } from './our-target.ts';
import type { Lab } from './scenario.ts';

const SECOND = '10.10.0.203';
/** Its end in the table of the RDMA device, which follows the addresses of the card. */
const SECOND_GID = '0a0a:00cb';
const NULLB = 'nullb0';
const PORT_IDS = [1, 2] as const;

const OPEN = 'tc qdisc del dev eth0 clsact 2>/dev/null || true';

async function swallow(guest: Guest, match: string): Promise<void> {
  await guest.run(`modprobe -a sch_ingress cls_u32 act_gact
    tc qdisc replace dev eth0 clsact
    tc filter add dev eth0 ingress protocol ip u32 match ip ${match}/32 action drop`);
}

export class NvmetPaths {
  readonly addresses: readonly [string, string];
  readonly #guest: Guest;
  readonly #nvmet: Nvmet;

  private constructor(guest: Guest, nvmet: Nvmet, address: string) {
    this.#guest = guest;
    this.#nvmet = nvmet;
    this.addresses = [address, SECOND];
  }

  static async start(lab: Lab): Promise<NvmetPaths> {
    const { guest, address } = await lab.takeGuest('nvmet');
    await guest.run(`ip addr replace ${SECOND}/24 dev eth0
      until cat /sys/class/infiniband/rdma0/ports/1/gids/* | grep -q ${SECOND_GID}; do sleep 0.1; done`);
    const nvmet = await Nvmet.prepare(guest);
    const paths = new NvmetPaths(guest, nvmet, address);
    lab.defer(() => (guest.alive ? paths.#clear() : undefined));
    const device = await addNullBlock(guest, NULLB);
    await nvmet.addSubsystem(NQN);
    await nvmet.addNamespace(NQN, 1, device);
    for (const [index, id] of PORT_IDS.entries()) {
      await nvmet.addPort(id, paths.addresses[index] ?? '', PORT, [NQN]);
    }
    return paths;
  }

  setAna(path: 0 | 1, state: AnaStateName): Promise<void> {
    return this.#nvmet.setAnaState(PORT_IDS[path], 1, state);
  }

  /** Takes the subsystem off that port: its controllers end, and nobody listens there. */
  withdraw(path: 0 | 1): Promise<void> {
    return this.#nvmet.withdraw(PORT_IDS[path], NQN);
  }

  offer(path: 0 | 1): Promise<void> {
    return this.#nvmet.offer(PORT_IDS[path], NQN);
  }

  /**
   * No packet to or from the address gets through. Dropped where they arrive: rdma_rxe takes a packet that its own card drops for
   * an error of the queue pair, also of the one that all connection management needs.
   */
  async blackhole(path: 0 | 1, host: Guest): Promise<void> {
    const address = this.addresses[path];
    await swallow(this.#guest, `dst ${address}`);
    await swallow(host, `src ${address}`);
  }

  async mend(host: Guest): Promise<void> {
    for (const guest of [this.#guest, host]) await guest.run(OPEN);
  }

  async #clear(): Promise<void> {
    await this.#guest.run(OPEN);
    await this.#nvmet.clear();
    await removeNullBlock(this.#guest, NULLB);
    await this.#guest.run(`ip addr del ${SECOND}/24 dev eth0`);
  }
}
