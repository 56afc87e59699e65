/**
 * A target process that is made to fail: killed, stopped, started again as it was, told of faults. By its pid alone; what
 * was started is ended, whatever happened to it.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { formatEndpoint, parseAddress } from '../../native/common/address.ts';
import type { Counters } from '../../native/common/counters.ts';
import { NO_FAULTS } from '../../target/index.ts';
import type { FaultRule } from '../../target/index.ts';
import type { TargetRequest } from '../cli/target-channel.ts';
import { TargetProcess } from '../target-process.ts';
import type { End, FaultyTarget, TargetLife, Where } from './faulty-target.ts';
import type { NetworkNamespace } from './network-namespace.ts';

export interface ManagedTargetOptions extends Where {
  /** As `nvmeof target --export` takes it. */
  readonly exports?: readonly string[];
  /** A configuration file in place of exports; it names address, port and NQN as well. */
  readonly config?: string;
  /** Of the faults. */
  readonly seed: number;
  /** Where it runs; absent: with us. */
  readonly network?: NetworkNamespace | undefined;
}

type Asked = TargetRequest extends infer Each
  ? Each extends { readonly id: number }
    ? Omit<Each, 'id'>
    : never
  : never;

const PAUSE_MS = 5000;

function isStopped(pid: number): boolean {
  const state = (thread: string): string | undefined =>
    /\) (\w)/.exec(readFileSync(`/proc/${pid}/task/${thread}/stat`, 'latin1'))?.[1];
  try {
    return readdirSync(`/proc/${pid}/task`).every((thread) => state(thread) === 'T');
  } catch {
    // A thread, or the process, ended meanwhile.
    return false;
  }
}

/** Of the one namespace. */
const ANA_GROUP = 1;

export class ManagedTarget implements FaultyTarget, TargetLife {
  readonly options: ManagedTargetOptions;
  #process: TargetProcess;
  #stopped = false;
  readonly #rules = new Set<FaultRule>();

  private constructor(options: ManagedTargetOptions, process: TargetProcess) {
    this.options = options;
    this.#process = process;
  }

  static async start(options: ManagedTargetOptions): Promise<ManagedTarget> {
    return new ManagedTarget(options, await launch(options));
  }

  get endpoint(): string {
    const { address, port } = this.options;
    return formatEndpoint({ address: parseAddress(address), port });
  }

  get where(): Where {
    const { address, port, nqn } = this.options;
    return { address, port, nqn };
  }

  get life(): TargetLife {
    return this;
  }

  get running(): boolean {
    return this.#process.running;
  }

  get standsStill(): boolean {
    return isStopped(this.pid);
  }

  get pid(): number {
    return this.#process.pid;
  }

  get output(): string {
    return this.#process.output;
  }

  /** Everything can be done to it. */
  refusal(): undefined {
    return undefined;
  }

  async kill(): Promise<void> {
    await this.#process.kill();
  }

  async terminate(): Promise<End> {
    await this.close();
    return () => this.startAgain();
  }

  /** With the configuration of the first start, and without faults. */
  async startAgain(): Promise<void> {
    if (this.running) throw new Error('the target runs');
    this.#rules.clear();
    this.#stopped = false;
    this.#process = await launch(this.options);
  }

  /** SIGSTOP; resolves when every thread stands still, which the signal alone does not wait for. */
  async pause(): Promise<void> {
    this.#stopped = true;
    this.#process.signal('SIGSTOP');
    const deadline = performance.now() + PAUSE_MS;
    while (this.running && !isStopped(this.pid)) {
      if (performance.now() > deadline) throw new Error(`not stopped within ${PAUSE_MS} ms`);
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }

  /** SIGCONT. */
  resume(): void {
    this.#process.signal('SIGCONT');
    this.#stopped = false;
  }

  /** A rule that holds until its end. */
  async packetFault(rule: FaultRule): Promise<End> {
    if (this.options.network) return this.options.network.packetFault(rule);
    await this.addFault(rule);
    return () => this.removeFault(rule);
  }

  faultCounters(): Promise<Counters> {
    return this.options.network?.faultCounters() ?? this.counters();
  }

  /** In addition to the rules that hold; the first that fits a packet counts. */
  async addFault(rule: FaultRule): Promise<void> {
    this.#rules.add(rule);
    await this.#sendRules();
  }

  async removeFault(rule: FaultRule): Promise<void> {
    if (!this.#rules.delete(rule)) return;
    await this.#sendRules();
  }

  async resize(nsid: number, bytes: bigint): Promise<void> {
    await this.#ask({ call: 'resize', nqn: this.options.nqn, nsid, bytes: bytes.toString() });
  }

  /** At all ports of the target; optimized afterwards. */
  async setAnaState(_nsid: number, state: string): Promise<End> {
    const set = async (each: string): Promise<void> => {
      await this.#ask({ call: 'ana', nqn: this.options.nqn, group: ANA_GROUP, state: each });
    };
    await set(state);
    return () => set('optimized');
  }

  async ioCommands(): Promise<number> {
    return ioCommandsOf(await this.counters());
  }

  async counters(): Promise<Counters> {
    return (await this.#ask({ call: 'counters' })) as Counters;
  }

  /** In good order if it can, else by force. */
  async close(): Promise<void> {
    if (!this.running) return;
    if (this.#stopped) this.resume();
    try {
      await this.#process.stop();
    } finally {
      await this.#process.kill();
    }
  }

  #ask(request: Asked): Promise<unknown> {
    return this.#process.ask(request);
  }

  async #sendRules(): Promise<void> {
    const { seed } = this.options;
    const faults = this.#rules.size === 0 ? NO_FAULTS : { seed, rules: [...this.#rules] };
    await this.#ask({ call: 'faults', faults });
  }
}

/** Reads and writes, of a target's counters. */
export function ioCommandsOf(counters: Counters): number {
  return (counters['target.commands.read'] ?? 0) + (counters['target.commands.write'] ?? 0);
}

function launch(options: ManagedTargetOptions): Promise<TargetProcess> {
  const what = options.config === undefined ? shortForm(options) : ['--config', options.config];
  const args = ['--inject-faults', '--no-control', ...what, '--log', 'warn'];
  return TargetProcess.start(args, true, options.network?.prefix);
}

function shortForm({ address, port, nqn, exports = [] }: ManagedTargetOptions): string[] {
  const where = address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
  const each = exports.flatMap((text) => ['--export', text]);
  return ['--provider', 'soft', '--nqn', nqn, '--listen', where, ...each];
}
