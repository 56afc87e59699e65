/** How good a path is for a namespace: what the native queue chooses by. */
import { RANK_UNUSABLE } from '../../native/index.ts';
import type { AnaState } from './ana-log.ts';

/** Optimized before non-optimized, as Linux has it; among equals those that the user prefers. */
const BY_STATE: Readonly<Record<AnaState, number>> = {
  optimized: 0,
  'non-optimized': 2,
  inaccessible: RANK_UNUSABLE,
  'persistent-loss': RANK_UNUSABLE,
  change: RANK_UNUSABLE,
};

export function rankOf(state: AnaState, preferred: boolean): number {
  const rank = BY_STATE[state];
  return rank === RANK_UNUSABLE || preferred ? rank : rank + 1;
}
