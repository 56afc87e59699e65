/**
 * A target outside the guests that changes while hosts use it: the Target library in a process of its own
 * (live-target-driver.ts), its methods called from here. Its log is among the traces of a scenario that fails.
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type {
  ControllerView,
  Faults,
  NamespaceOptions,
  SubsystemOptions,
  Target,
} from '../../../target/index.ts';
import { NQN, PORT } from './our-target.ts';
import type { Lab } from './scenario.ts';

const DRIVER = fileURLToPath(new URL('live-target-driver.ts', import.meta.url));
const PROGRESS_MS = 60_000;
const LOOK_MS = 50;

type Calls = Pick<
  Target,
  | 'addNamespace'
  | 'addPort'
  | 'addSubsystem'
  | 'close'
  | 'counters'
  | 'disableNamespace'
  | 'enableNamespace'
  | 'removeNamespace'
  | 'removePort'
  | 'removeSubsystem'
  | 'resizeNamespace'
  | 'setAnaGroup'
  | 'setAnaState'
  | 'setHosts'
>;

export interface Order {
  readonly id: number;
  readonly method: keyof Calls | 'start' | 'controllers' | 'faults';
  readonly args: readonly unknown[];
}

export interface Answer {
  readonly id: number;
  readonly value?: unknown;
  readonly error?: string;
  readonly code?: string | undefined;
}

interface Waiting {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

export interface LiveTargetOptions {
  readonly subsystems?: readonly SubsystemOptions[];
  /** Of the one subsystem, when `subsystems` is left out. */
  readonly namespaces?: readonly NamespaceOptions[];
  /** Where it listens (default: the lab's address, port 4420). */
  readonly address?: string;
  readonly ports?: readonly number[];
  /** Its packets may meet faults. */
  readonly faultInjection?: boolean;
}

export class LiveTarget {
  readonly address: string;
  readonly #child: ChildProcess;
  readonly #waiting = new Map<number, Waiting>();
  #lastId = 0;

  private constructor(address: string, child: ChildProcess) {
    this.address = address;
    this.#child = child;
    child.on('message', (answer: Answer) => {
      this.#onAnswer(answer);
    });
    child.on('exit', (code, signal) => {
      const error = new Error(`the target's process ended with ${String(code ?? signal)}`);
      for (const waiting of this.#waiting.values()) waiting.reject(error);
      this.#waiting.clear();
    });
  }

  /** Gone when the scenario is over. */
  static async start(lab: Lab, options: LiveTargetOptions = {}): Promise<LiveTarget> {
    const { subsystems, namespaces = [{ memory: '64MiB' }] } = options;
    const { address = lab.address, ports = [PORT], faultInjection = false } = options;
    const log = openSync(join(lab.folder, `live-target-${address.replaceAll(':', '-')}.log`), 'a');
    const child = fork(DRIVER, [], {
      execArgv: ['--import', 'tsx'],
      serialization: 'advanced',
      stdio: ['ignore', log, log, 'ipc'],
    });
    closeSync(log);
    const ended = once(child, 'exit');
    lab.defer(async () => {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
      await ended;
    });
    const target = new LiveTarget(address, child);
    await target.#order('start', [
      {
        provider: 'soft',
        ports: ports.map((port) => ({ address, port })),
        subsystems: subsystems ?? [{ nqn: NQN, namespaces }],
      },
      { faultInjection },
    ]);
    return target;
  }

  get running(): boolean {
    return this.#child.exitCode === null && this.#child.signalCode === null;
  }

  /** SIGTERM: closes in order. Resolves when the process has ended. */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    const ended = once(this.#child, 'exit');
    if (!this.running) return;
    this.#child.kill(signal);
    const [code] = (await ended) as [number | null];
    if (signal === 'SIGTERM' && code !== 0) {
      throw new Error(`the target's process ended with ${String(code)} after SIGTERM`);
    }
  }

  /** What its packets meet from now on; needs `faultInjection`. */
  async faults(faults: Faults): Promise<void> {
    await this.#order('faults', [faults]);
  }

  /** A method of Target; a rejection there is one here. */
  call<M extends keyof Calls>(
    method: M,
    ...args: Parameters<Calls[M]>
  ): Promise<Awaited<ReturnType<Calls[M]>>> {
    return this.#order(method, args) as Promise<Awaited<ReturnType<Calls[M]>>>;
  }

  controllers(): Promise<ControllerView[]> {
    return this.#order('controllers', []) as Promise<ControllerView[]>;
  }

  /** Takes the port away, and with it every association that came in there. */
  async removePort(): Promise<void> {
    await this.call('removePort', this.address, PORT);
  }

  async addPort(options: { readonly maxQueues?: number } = {}): Promise<void> {
    await this.call('addPort', { address: this.address, port: PORT, ...options });
  }

  /** Reads and writes that hosts have had executed. */
  async ioCommands(): Promise<number> {
    const counters = await this.call('counters');
    return (counters['target.commands.read'] ?? 0) + (counters['target.commands.write'] ?? 0);
  }

  /** Resolves when that many more reads and writes have been executed: the load is really there. */
  async progress(commands = 50): Promise<void> {
    const wanted = (await this.ioCommands()) + commands;
    const deadline = performance.now() + PROGRESS_MS;
    for (let now = 0; now < wanted; now = await this.ioCommands()) {
      if (performance.now() > deadline) {
        throw new Error(`no ${commands} reads and writes within ${PROGRESS_MS} ms`);
      }
      await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
    }
  }

  #order(method: Order['method'], args: readonly unknown[]): Promise<unknown> {
    if (!this.#child.connected) return Promise.reject(new Error("the target's process is gone"));
    const id = (this.#lastId += 1);
    return new Promise<unknown>((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#child.send({ id, method, args } satisfies Order);
    });
  }

  #onAnswer({ id, value, error, code }: Answer): void {
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    if (error === undefined) waiting?.resolve(value);
    else waiting?.reject(Object.assign(new Error(error), { code }));
  }
}
