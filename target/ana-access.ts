/**
 * ANA of one subsystem as it is carried out: what native lets through at each port, and in which order hosts, log and I/O see a
 * change. The states themselves are in ana.ts. Changes run one
 * after the other; ports come and go at any time.
 */
import type { TableId } from '../native/index.ts';
import { Serial } from '../native/common/serial.ts';
import { ANA_STATES, AnaStates } from './ana.ts';
import type { AnaRule, AnaStateName } from './ana.ts';
import { TransitionWatch } from './ana-transition.ts';
import type { Context } from './context.ts';

/** A disk should have answered by then. */
const SLOW_DRAIN_MS = 5000;

/** A group at one port. */
export interface AnaView {
  readonly port: string;
  readonly group: number;
  readonly state: AnaStateName;
}

/** And the namespaces in it. */
export interface AnaReport extends AnaView {
  readonly subsystemNqn: string;
  readonly nsids: readonly number[];
}

interface View {
  readonly port: string;
  /** What native answers to a group's commands, where that is not to run them. */
  readonly refused: Map<number, number>;
}

export class AnaAccess {
  readonly states: AnaStates;
  readonly #context: Context;
  readonly #nqn: string;
  readonly #table: TableId;
  readonly #announce: (view: AnaView) => void;
  readonly #watch: TransitionWatch;
  readonly #changes = new Serial();
  /** By the number of the port. */
  readonly #views = new Map<number, View>();

  /** `announce`: log and states are the new ones; hosts at that port are to be told. */
  constructor(
    context: Context,
    nqn: string,
    table: TableId,
    rules: readonly AnaRule[],
    announce: (view: AnaView) => void,
  ) {
    this.#context = context;
    this.#nqn = nqn;
    this.#table = table;
    this.#announce = announce;
    this.states = new AnaStates(rules);
    this.#watch = new TransitionWatch(context.clock, (port, group) => {
      context.log.warn(
        { subsystemNqn: nqn, port, group },
        'ANA state "change" lasts longer than hosts were told (ANATT); they may reset their controllers',
      );
    });
  }

  get ports(): string[] {
    return [...this.#views.values()].map(({ port }) => port);
  }

  /** As it would stand in the configuration file. */
  get rules(): AnaRule[] {
    return this.states.rules(new Set(this.ports));
  }

  /** The port is not listening yet: what must not run there is refused before the first queue is bound. */
  addPort(id: number, port: string): void {
    const view: View = { port, refused: new Map() };
    this.#views.set(id, view);
    for (const group of this.states.groups) {
      void this.#apply(id, view, group, this.states.ruled(port, group));
      this.#watchGroup(port, group);
    }
  }

  /** No queue of the port is left. Its states are kept, for the case that it comes back. */
  removePort(id: number): void {
    const view = this.#views.get(id);
    if (!view) return;
    for (const group of [...view.refused.keys()]) {
      void this.#apply(id, view, group, 'optimized');
      this.#watch.update(view.port, group, false);
    }
    this.#views.delete(id);
  }

  /**
   * A state in which I/O is refused holds at once and is announced at once; this resolves when nothing that it refuses is in a
   * backing, and holds nothing else up meanwhile. Any other state is announced when native lets the I/O through.
   */
  async set(rule: AnaRule): Promise<void> {
    const { drained } = await this.#changes.run(() => this.#set(rule));
    const slow = this.#context.clock.after(SLOW_DRAIN_MS, () => {
      const text = 'ANA state refuses I/O, but I/O from before is still in a backing';
      this.#context.log.warn({ subsystemNqn: this.#nqn, ...rule }, text);
    });
    try {
      await drained;
    } finally {
      slow.cancel();
    }
  }

  async #set(rule: AnaRule): Promise<{ readonly drained: Promise<unknown> }> {
    const { group, state } = rule;
    const changed = [...this.#views].filter(
      ([, { port }]) => (rule.port ?? port) === port && this.states.ruled(port, group) !== state,
    );
    const drained = Promise.all(changed.map(([id, view]) => this.#apply(id, view, group, state)));
    const refuses = ANA_STATES[state].status !== 0;
    if (!refuses) await drained;
    const ports = changed.map(([, { port }]) => port);
    this.states.set(rule, ports);
    for (const port of ports) {
      this.#watchGroup(port, group);
      this.#announce({ port, group, state });
    }
    if (!refuses) await this.#applyLate(group);
    return { drained };
  }

  /** Ports that were added while native was asked took the state of before. */
  async #applyLate(group: number): Promise<void> {
    const views = [...this.#views].map(([id, view]) =>
      this.#apply(id, view, group, this.states.ruled(view.port, group)),
    );
    await Promise.all(views);
  }

  /** Changes under way end first. */
  async close(): Promise<void> {
    await this.#changes.idle();
    this.#watch.stop();
  }

  #watchGroup(port: string, group: number): void {
    this.#watch.update(port, group, this.states.ruled(port, group) === 'change');
  }

  /** Asks native only where its answer differs. */
  async #apply(id: number, view: View, group: number, state: AnaStateName): Promise<void> {
    const { status } = ANA_STATES[state];
    if ((view.refused.get(group) ?? 0) === status) return;
    if (status === 0) view.refused.delete(group);
    else view.refused.set(group, status);
    const { runtime } = this.#context;
    await runtime.operation(runtime.door.setAccess(this.#table, id, group, status));
  }
}
