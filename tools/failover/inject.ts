/**
 * Makes the faults of a scenario happen: a table from the kind of fault to what is done to a target, and what is undone
 * when its time is over. A fault shows that it happened; what shows in the host alone is found in the run's log (unseen.ts).
 */
import { connect } from '../../initiator/index.ts';
import type { FaultRule } from '../../target/index.ts';
import type { End, FaultyTarget } from './faulty-target.ts';
import { grownTo } from './resize.ts';
import { lengthOf } from './scenario.ts';
import type { Fault, FaultKind } from './scenario.ts';

type Of<Kind extends FaultKind> = Extract<Fault, { readonly kind: Kind }>;
/** Resolves when the fault has taken hold, with what ends it. */
type Begin<Kind extends FaultKind> = (fault: Of<Kind>, field: Field) => Promise<Over>;
/** Takes a fault back, and says why it was none: what it should have done was not seen. */
export type Over = () => Promise<string | undefined>;

/** What faults happen to. */
export interface Field {
  readonly target: FaultyTarget;
  /** All that share the namespace. */
  readonly targets: readonly FaultyTarget[];
  readonly nsid: number;
  readonly namespaceBytes: bigint;
}

const HAPPENED = Promise.resolve(undefined);

/** Takes it back; that it happened was seen before, or is seen by the host. */
const undone =
  (end: End): Over =>
  async () => {
    await end();
    return undefined;
  };

/** A process that was to end must have ended, before anything of it is started again. */
function ended(target: FaultyTarget, again: Over): Over {
  return target.life?.running === true ? () => Promise.resolve('the target went on') : again;
}

type Effect = 'dropped' | 'duplicated' | 'reordered' | 'delayed';

/** Packets must have met the rule. */
async function packets(target: FaultyTarget, rule: FaultRule, effect: Effect): Promise<Over> {
  const met = async (): Promise<number> => {
    const counters = await target.faultCounters();
    return ['in', 'out'].reduce(
      (sum, way) => sum + (counters[`soft.fault.${way}_${effect}`] ?? 0),
      0,
    );
  };
  const pid = target.life?.pid;
  const before = await met();
  const end = await target.packetFault(rule);
  return async () => {
    // Another fault ended that process, and its rules and counters with it.
    if (target.life && (target.life.pid !== pid || !target.life.running)) return undefined;
    const more = (await met()) - before;
    await end();
    return more > 0 ? undefined : `no packet was ${effect}`;
  };
}

async function hostComesAndGoes({ target }: Field, rounds: number): Promise<void> {
  for (let round = 0; round < rounds; round++) {
    const controller = await connect({ ...target.where, queues: 1, depth: 16 });
    await controller.disconnect();
  }
}

/** What the target has for a fault; `scenarioRefusal` has told the user before when it has not. */
function part<T>(what: T | undefined, { kind }: Fault, target: FaultyTarget): T {
  if (what !== undefined) return what;
  throw new Error(`${kind} at ${target.endpoint}: ${target.refusal(kind) ?? 'not possible'}`);
}

const BEGIN: { readonly [Kind in FaultKind]: Begin<Kind> } = {
  kill: async (fault, { target }) => {
    await part(target.life, fault, target).kill();
    return ended(target, () => HAPPENED);
  },
  restart: async (fault, { target }) => {
    const life = part(target.life, fault, target);
    await life.kill();
    return ended(
      target,
      undone(() => life.startAgain()),
    );
  },
  terminate: async (fault, { target }) => {
    const end = await part(target.terminate?.bind(target), fault, target)();
    return ended(target, undone(end));
  },
  stop: async (fault, { target }) => {
    const life = part(target.life, fault, target);
    await life.pause();
    return () => {
      const still = life.standsStill;
      life.resume();
      return still ? HAPPENED : Promise.resolve('the target did not stand still');
    };
  },
  blackhole: ({ direction }, { target }) => packets(target, { direction, drop: 1 }, 'dropped'),
  loss: ({ direction, drop }, { target }) => packets(target, { direction, drop }, 'dropped'),
  duplicate: ({ direction, duplicate }, { target }) =>
    packets(target, { direction, duplicate }, 'duplicated'),
  reorder: ({ direction, reorder, reorderMs }, { target }) =>
    packets(target, { direction, reorder, reorderMs }, 'reordered'),
  delay: ({ direction, delayMs, jitterMs }, { target }) =>
    packets(target, { direction, delayMs, jitterMs }, 'delayed'),
  ana: async (fault, { target, nsid }) => {
    const end = await part(target.setAnaState?.bind(target), fault, target)(nsid, fault.state);
    return lengthOf(fault) > 0 ? undone(end) : () => HAPPENED;
  },
  resize: async (fault, { targets, nsid, namespaceBytes }) => {
    const bytes = grownTo(namespaceBytes, fault.percent);
    for (const target of targets) {
      await part(target.resize?.bind(target), fault, target)(nsid, bytes);
    }
    return () => HAPPENED;
  },
  // Hosts that could not connect reject.
  storm: async ({ hosts, rounds }, field) => {
    await Promise.all(Array.from({ length: hosts }, () => hostComesAndGoes(field, rounds)));
    return () => HAPPENED;
  },
};

export function beginFault(fault: Fault, field: Field): Promise<Over> {
  return (BEGIN[fault.kind] as Begin<FaultKind>)(fault, field);
}
