/**
 * Makes the faults of a scenario happen: a table from the kind of fault to what is done to a target, and what is undone
 * when its time is over.
 */
import { connect } from '../../initiator/index.ts';
import type { FaultRule } from '../../target/index.ts';
import type { FailoverHost } from './host.ts';
import type { ManagedTarget } from './managed-target.ts';
import { lengthOf } from './scenario.ts';
import type { Fault, FaultKind, Scenario } from './scenario.ts';

type Of<Kind extends FaultKind> = Extract<Fault, { readonly kind: Kind }>;
/** Resolves when the fault has taken hold, with what ends it. */
type Begin<Kind extends FaultKind> = (fault: Of<Kind>, field: Field) => Promise<End>;
type End = () => void | Promise<void>;

/** What faults happen to. */
export interface Field {
  readonly target: ManagedTarget;
  /** All that share the namespace. */
  readonly targets: readonly ManagedTarget[];
  readonly nsid: number;
  readonly namespaceBytes: bigint;
}

/** Of the one namespace. */
const ANA_GROUP = 1;
const NOTHING: End = () => undefined;

/** A rule that holds until the fault is over. */
async function rule(target: ManagedTarget, what: FaultRule): Promise<End> {
  await target.addFault(what);
  return () => target.removeFault(what);
}

async function hostComesAndGoes({ target }: Field, rounds: number): Promise<void> {
  const { address, port, nqn } = target.options;
  for (let round = 0; round < rounds; round++) {
    const controller = await connect({ address, port, nqn, queues: 1, depth: 16 });
    await controller.disconnect();
  }
}

const BEGIN: { readonly [Kind in FaultKind]: Begin<Kind> } = {
  kill: async (_, { target }) => {
    await target.kill();
    return NOTHING;
  },
  restart: async (_, { target }) => {
    await target.kill();
    return () => target.startAgain();
  },
  terminate: async (_, { target }) => {
    await target.close();
    return () => target.startAgain();
  },
  stop: async (_, { target }) => {
    await target.pause();
    return () => {
      target.resume();
    };
  },
  blackhole: ({ direction }, { target }) => rule(target, { direction, drop: 1 }),
  loss: ({ direction, drop }, { target }) => rule(target, { direction, drop }),
  duplicate: ({ direction, duplicate }, { target }) => rule(target, { direction, duplicate }),
  reorder: ({ direction, reorder, reorderMs }, { target }) =>
    rule(target, { direction, reorder, reorderMs }),
  delay: ({ direction, delayMs, jitterMs }, { target }) =>
    rule(target, { direction, delayMs, jitterMs }),
  ana: async ({ state }, { target }) => {
    await target.setAnaState(ANA_GROUP, state);
    return () => target.setAnaState(ANA_GROUP, 'optimized');
  },
  resize: async ({ percent }, { targets, nsid, namespaceBytes }) => {
    const bytes = (namespaceBytes * BigInt(percent)) / 100n;
    for (const target of targets) await target.resize(nsid, bytes - (bytes % 4096n));
    return NOTHING;
  },
  storm: async ({ hosts, rounds }, field) => {
    await Promise.all(Array.from({ length: hosts }, () => hostComesAndGoes(field, rounds)));
    return NOTHING;
  },
};

export function beginFault(fault: Fault, field: Field): Promise<End> {
  return (BEGIN[fault.kind] as Begin<FaultKind>)(fault, field);
}

/** The transport gives a silent peer up after 27 timeouts of 67 ms; below this a path lives on. */
const SURVIVED_MS = 1200;

/** Why a host cannot pass a scenario whatever it does; undefined: it may. */
export function unfit(
  scenario: Scenario,
  host: Pick<FailoverHost, 'survivesLostPaths' | 'followsAna'>,
): string | undefined {
  for (const fault of scenario.faults) {
    if (fault.kind === 'ana' && !host.followsAna)
      return `${fault.kind} needs a host that follows ANA`;
    if (takesPathAway(fault) && !host.survivesLostPaths) {
      return `${fault.kind} takes the path away, and this host has no other`;
    }
  }
  return undefined;
}

function takesPathAway(fault: Fault): boolean {
  if (['kill', 'restart', 'terminate'].includes(fault.kind)) return true;
  if (fault.kind !== 'stop' && fault.kind !== 'blackhole') return false;
  return lengthOf(fault) > SURVIVED_MS;
}
