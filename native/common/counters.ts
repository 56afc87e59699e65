/** Counters as the data path gives them: one flat map. For logs and tables. */
export type Counters = Readonly<Record<string, number>>;

/** Those that have counted something: of some 150 the few that matter. */
export function nonZero(counters: Counters): Counters {
  return Object.fromEntries(Object.entries(counters).filter(([, value]) => value !== 0));
}
