/**
 * Makes the faults of a scenario happen: a table from the kind of fault to what is done to a target, and what is undone
 * when its time is over.
 */
import { connect } from '../../initiator/index.ts';
import type { End, FaultyTarget } from './faulty-target.ts';
import type { Fault, FaultKind } from './scenario.ts';

type Of<Kind extends FaultKind> = Extract<Fault, { readonly kind: Kind }>;
/** Resolves when the fault has taken hold, with what ends it. */
type Begin<Kind extends FaultKind> = (fault: Of<Kind>, field: Field) => Promise<End>;

/** What faults happen to. */
export interface Field {
  readonly target: FaultyTarget;
  /** All that share the namespace. */
  readonly targets: readonly FaultyTarget[];
  readonly nsid: number;
  readonly namespaceBytes: bigint;
}

const NOTHING: End = () => undefined;

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
    return NOTHING;
  },
  restart: async (fault, { target }) => {
    const life = part(target.life, fault, target);
    await life.kill();
    return () => life.startAgain();
  },
  terminate: (fault, { target }) => part(target.terminate?.bind(target), fault, target)(),
  stop: async (fault, { target }) => {
    const life = part(target.life, fault, target);
    await life.pause();
    return () => {
      life.resume();
    };
  },
  blackhole: ({ direction }, { target }) => target.packetFault({ direction, drop: 1 }),
  loss: ({ direction, drop }, { target }) => target.packetFault({ direction, drop }),
  duplicate: ({ direction, duplicate }, { target }) => target.packetFault({ direction, duplicate }),
  reorder: ({ direction, reorder, reorderMs }, { target }) =>
    target.packetFault({ direction, reorder, reorderMs }),
  delay: ({ direction, delayMs, jitterMs }, { target }) =>
    target.packetFault({ direction, delayMs, jitterMs }),
  ana: (fault, { target, nsid }) =>
    part(target.setAnaState?.bind(target), fault, target)(nsid, fault.state),
  resize: async (fault, { targets, nsid, namespaceBytes }) => {
    const bytes = (namespaceBytes * BigInt(fault.percent)) / 100n;
    for (const target of targets) {
      await part(target.resize?.bind(target), fault, target)(nsid, bytes - (bytes % 4096n));
    }
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
