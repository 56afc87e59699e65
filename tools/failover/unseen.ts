/** What the host must have seen of a fault: the path lost, its other ANA state, the new size. Pure. */
import type { FaultRecord, RunRecord } from './analysis.ts';
import type { PathState } from './host.ts';
import { grownTo } from './resize.ts';
import type { Fault, FaultKind } from './scenario.ts';

/** States of the path from the fault on, until another fault happens to it. */
function statesSince(run: RunRecord, { path, beginMs }: FaultRecord): PathState[] {
  const next = run.faults.find((each) => each.path === path && each.beginMs > beginMs);
  const until = next?.beginMs ?? Infinity;
  return run.paths
    .filter((each) => each.path === path && each.atMs >= beginMs && each.atMs < until)
    .map(({ state }) => state);
}

type Look<Kind extends FaultKind> = (
  fault: Extract<Fault, { readonly kind: Kind }>,
  run: RunRecord,
  record: FaultRecord,
) => string | undefined;

/** Kinds that are not there have shown themselves when they ended. */
const LOOKS: { readonly [Kind in FaultKind]?: Look<Kind> } = {
  terminate: (_, run, record) =>
    statesSince(run, record).some((state) => state === 'connecting' || state === 'lost')
      ? undefined
      : 'the host lost no controller',
  ana: ({ state }, run, record) =>
    statesSince(run, record).includes(state === 'optimized' ? 'live' : 'standby')
      ? undefined
      : `the host did not see the path ${state}`,
  resize: ({ percent }, run, { fault }) => {
    const last = run.faults.findLast((each) => each.fault.kind === 'resize');
    if (last?.fault !== fault || run.bytesAtEnd === grownTo(run.bytesAtStart, percent)) {
      return undefined;
    }
    return `the host sees ${run.bytesAtEnd} bytes`;
  },
};

/** Undefined: it saw all of it. */
export function unseen(run: RunRecord, record: FaultRecord): string | undefined {
  const look = LOOKS[record.fault.kind] as Look<FaultKind> | undefined;
  return look?.(record.fault, run, record);
}
