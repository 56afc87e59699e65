/**
 * Asymmetric namespace access of one subsystem (NVMe Base 2.1 section 8.1.1): the state of each ANA group at each port, change
 * counts, and the log page that a port shows. Knows ports by their endpoint ('192.0.2.1:4420'); holds no I/O back, which is
 * ana-access.ts. Pure.
 */
import { AnaState, encodeAnaLog } from '../native/wire/ana.ts';
import { Status } from '../native/wire/status.ts';

/** ANAGRPMAX and NANAGRPID. */
export const ANA_GROUP_MAX = 128;

/** ANATT: seconds that a group stays in "change" at most. Linux resets its controllers after twice that. */
export const ANATT_SECONDS = 10;

interface StateRow {
  readonly wire: number;
  /** What I/O commands are answered; 0: they run. May be repeated, elsewhere or later: no DNR. */
  readonly status: number;
  /** Whether the namespace tells its utilization. */
  readonly capacity: boolean;
}

const { anaInaccessible, anaPersistentLoss, anaTransition } = Status;

/** By the names that Linux uses. */
export const ANA_STATES = {
  optimized: { wire: AnaState.optimized, status: 0, capacity: true },
  'non-optimized': { wire: AnaState.nonOptimized, status: 0, capacity: true },
  inaccessible: { wire: AnaState.inaccessible, status: anaInaccessible, capacity: false },
  'persistent-loss': { wire: AnaState.persistentLoss, status: anaPersistentLoss, capacity: false },
  change: { wire: AnaState.change, status: anaTransition, capacity: true },
} as const satisfies Readonly<Record<string, StateRow>>;

export type AnaStateName = keyof typeof ANA_STATES;

export const ANA_STATE_NAMES = Object.keys(ANA_STATES) as AnaStateName[];

/** The state of a group at a port, or at all ports. */
export interface AnaRule {
  readonly group: number;
  readonly state: AnaStateName;
  /** 'ADDRESS:PORT', canonical; absent: every port that no other rule names. */
  readonly port?: string | undefined;
}

export interface GroupMember {
  readonly nsid: number;
  readonly group: number;
}

export interface AnaPage {
  readonly changeCount: bigint;
  readonly bytes: Uint8Array;
}

/** How often the log page changed, as a whole and by group. */
class ChangeCounts {
  #all = 0n;
  readonly #groups = new Map<number, bigint>();

  get all(): bigint {
    return this.#all;
  }

  of(group: number): bigint {
    return this.#groups.get(group) ?? 0n;
  }

  add(group: number): void {
    this.#all += 1n;
    this.#groups.set(group, this.of(group) + 1n);
  }
}

export class AnaStates {
  readonly #everywhere = new Map<number, AnaStateName>();
  readonly #ports = new Map<string, Map<number, AnaStateName>>();
  /** Of members, which every port sees, and of states. */
  readonly #common = new ChangeCounts();
  readonly #own = new Map<string, ChangeCounts>();
  /** Ports that hosts are asked to leave. */
  readonly #withdrawn = new Set<string>();

  constructor(rules: readonly AnaRule[]) {
    for (const rule of rules.filter(({ port }) => port === undefined)) this.#put(rule);
    for (const rule of rules.filter(({ port }) => port !== undefined)) this.#put(rule);
  }

  /** As hosts are told. */
  state(port: string, group: number): AnaStateName {
    const state = this.ruled(port, group);
    return this.#withdrawn.has(port) && ANA_STATES[state].status === 0 ? 'inaccessible' : state;
  }

  /** As I/O is treated: what the rules say. */
  ruled(port: string, group: number): AnaStateName {
    return this.#ports.get(port)?.get(group) ?? this.#everywhere.get(group) ?? 'optimized';
  }

  /** Groups that are not optimized everywhere, ascending. */
  get groups(): number[] {
    const named = [this.#everywhere, ...this.#ports.values()].flatMap((states) => [
      ...states.keys(),
    ]);
    return [...new Set(named)].sort((a, b) => a - b);
  }

  /** The shortest rules that say what holds; of ports that `known` leaves out nothing. */
  rules(known: ReadonlySet<string>): AnaRule[] {
    const everywhere = [...this.#everywhere].map(([group, state]) => ({ group, state }));
    const own = [...this.#ports].flatMap(([port, states]) =>
      known.has(port) ? [...states].map(([group, state]) => ({ group, state, port })) : [],
    );
    return [...everywhere, ...own].sort((a, b) => a.group - b.group);
  }

  /** `changed`: the ports where the group had another state before. */
  set(rule: AnaRule, changed: Iterable<string>): void {
    this.#put(rule);
    for (const port of changed) this.#countsOf(port).add(rule.group);
  }

  /** At the port hosts are told that nothing can be reached, though it can, or the truth again. False: they are told so already. */
  withdraw(port: string, withdrawn: boolean, groups: Iterable<number>): boolean {
    if (withdrawn === this.#withdrawn.has(port)) return false;
    if (withdrawn) this.#withdrawn.add(port);
    else this.#withdrawn.delete(port);
    for (const group of groups) this.#countsOf(port).add(group);
    return true;
  }

  /** A namespace joined the group or left it. */
  membersChanged(group: number): void {
    this.#common.add(group);
  }

  changeCount(port: string): bigint {
    return this.#common.all + this.#countsOf(port).all;
  }

  /** Groups without a namespace are left out. */
  page(port: string, members: readonly GroupMember[], groupsOnly: boolean): AnaPage {
    const byGroup = new Map<number, number[]>();
    for (const { nsid, group } of members) {
      const list = byGroup.get(group);
      if (list) list.push(nsid);
      else byGroup.set(group, [nsid]);
    }
    const groups = [...byGroup].sort(([a], [b]) => a - b);
    const own = this.#countsOf(port);
    const changeCount = this.changeCount(port);
    const bytes = encodeAnaLog(
      changeCount,
      groups.map(([group, nsids]) => ({
        group,
        changeCount: this.#common.of(group) + own.of(group),
        state: ANA_STATES[this.state(port, group)].wire,
        nsids: groupsOnly ? [] : nsids.sort((a, b) => a - b),
      })),
    );
    return { changeCount, bytes };
  }

  /** A rule for all ports replaces those for single ones. What goes without saying is not kept. */
  #put({ group, state, port }: AnaRule): void {
    if (port === undefined) {
      for (const [endpoint, states] of this.#ports) {
        states.delete(group);
        if (states.size === 0) this.#ports.delete(endpoint);
      }
      if (state === 'optimized') this.#everywhere.delete(group);
      else this.#everywhere.set(group, state);
      return;
    }
    const states = this.#ports.get(port) ?? new Map<number, AnaStateName>();
    if (state === (this.#everywhere.get(group) ?? 'optimized')) states.delete(group);
    else states.set(group, state);
    if (states.size > 0) this.#ports.set(port, states);
    else this.#ports.delete(port);
  }

  #countsOf(port: string): ChangeCounts {
    let counts = this.#own.get(port);
    if (!counts) this.#own.set(port, (counts = new ChangeCounts()));
    return counts;
  }
}
