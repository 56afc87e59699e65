/**
 * The kernel's target as our initiator finds it: one subsystem on one RDMA port, its namespace a block device in the
 * guest's memory. Commands of our CLI and controllers of our library connect to it from outside the guest.
 */
import { connect, type ConnectOptions, type Controller } from '../../../initiator/index.ts';
import { Process, type Finished } from '../../support/processes.ts';
import type { Guest } from './guest.ts';
import { addNullBlock, removeNullBlock } from './null-block.ts';
import { Nvmet } from './nvmet.ts';
import type { Lab } from './scenario.ts';

export const NQN = 'nqn.2026-11.io.nvmeof:kernel-target';
export const PORT = 4420;
const PORT_ID = 1;
const NULLB = 'nullb0';
const CLI_SECONDS = 60;

export interface NvmetOptions {
  readonly mebibytes?: number;
  readonly blockBytes?: number;
  /** Parameters of the module nvmet-rdma, which is loaded anew for this scenario then. */
  readonly moduleParameters?: string;
}

export class NvmetPeer {
  readonly guest: Guest;
  readonly nvmet: Nvmet;
  readonly address: string;
  /** Of the namespace, in the guest. */
  readonly device = `/dev/${NULLB}`;
  readonly #lab: Lab;
  #commands = 0;

  private constructor(lab: Lab, guest: Guest, address: string, nvmet: Nvmet) {
    this.#lab = lab;
    this.guest = guest;
    this.address = address;
    this.nvmet = nvmet;
  }

  static async start(lab: Lab, options: NvmetOptions = {}): Promise<NvmetPeer> {
    const { mebibytes, blockBytes, moduleParameters } = options;
    const { guest, address } = await lab.takeGuest();
    if (moduleParameters !== undefined) {
      await guest.run(`modprobe -r nvmet-rdma; modprobe nvmet-rdma ${moduleParameters}`);
      lab.defer(() => (guest.alive ? guest.run('modprobe -r nvmet-rdma') : undefined));
    }
    const nvmet = await Nvmet.prepare(guest);
    const peer = new NvmetPeer(lab, guest, address, nvmet);
    lab.defer(() => (guest.alive ? peer.#clear() : undefined));
    await addNullBlock(guest, NULLB, { mebibytes, blockBytes });
    await nvmet.addSubsystem(NQN);
    await nvmet.addNamespace(NQN, 1, peer.device);
    await nvmet.addPort(PORT_ID, address, PORT, [NQN]);
    return peer;
  }

  /** `nvmeof COMMAND ADDRESS NQN …`, to its end. */
  cli(command: string, ...args: readonly string[]): Promise<Finished> {
    const where = [this.address, ...(command === 'discover' ? [] : [NQN])];
    return this.runCli([command, ...where, ...args]);
  }

  async runCli(args: readonly string[], seconds = CLI_SECONDS): Promise<Finished> {
    const process: Process = this.#lab.nvmeof(`${args[0]}${(this.#commands += 1)}`, args);
    process.child.stdin?.end();
    const late = setTimeout(() => process.child.kill('SIGKILL'), seconds * 1000);
    try {
      return await process.ended();
    } finally {
      clearTimeout(late);
    }
  }

  /** The same, which has to succeed; returns what it printed. */
  async cliOutput(command: string, ...args: readonly string[]): Promise<string> {
    const { code, signal, stdout, stderr } = await this.cli(command, ...args);
    if (code === 0) return stdout;
    throw new Error(`nvmeof ${command} ended with ${code ?? String(signal)}:\n${stdout}${stderr}`);
  }

  /** A controller of the library in this process; disconnected when the scenario is over. */
  async connect(options: Partial<ConnectOptions> = {}): Promise<Controller> {
    const controller = await connect({ address: this.address, nqn: NQN, ...options });
    this.#lab.defer(() => controller.disconnect());
    return controller;
  }

  /** Takes the subsystem off the port: its controllers end, and nobody listens. */
  withdraw(): Promise<void> {
    return this.nvmet.withdraw(PORT_ID, NQN);
  }

  offer(): Promise<void> {
    return this.nvmet.offer(PORT_ID, NQN);
  }

  async #clear(): Promise<void> {
    await this.nvmet.clear();
    await removeNullBlock(this.guest, NULLB);
  }
}
