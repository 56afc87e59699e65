/**
 * Built-in scenarios: a row for each, with the longest stall that it allows. The transport's own times stand behind the
 * bounds (docs/architecture.md, Reliability): a silent peer is asked again after 67, 201 and 403 ms, and given up after
 * 1.41 s. They are those of a machine that does nothing else.
 */
import type { ScenarioInput } from './scenario.ts';

/** Lost tails are repaired by the first or second timeout, whatever else happens at the time. */
const REPAIRED_MS = 600;

/** A path that could be used again is, after the reconnect delay and what an attempt takes. */
const RETURN_MS = 100;
/** The same of a target whose process starts, on the cores of the load. */
const RETURN = { returnMs: RETURN_MS, returnStallMs: 100 };

/** Silence is noticed when the transport gives the peer up; I/O goes on right after. */
const SILENCE = { detectMs: 1500, returnMs: RETURN_MS };

export const SCENARIOS: readonly ScenarioInput[] = [
  {
    ...{ name: 'loss', about: '1 % of the packets are lost, each way', duration: '8s' },
    faults: [{ kind: 'loss', at: '2s', for: '4s', drop: 0.01, bounds: { stallMs: REPAIRED_MS } }],
  },
  {
    ...{ name: 'delay', about: 'each packet takes 5 to 7 ms, each way', duration: '8s' },
    faults: [
      {
        ...{ kind: 'delay', at: '2s', for: '4s', delayMs: 5, jitterMs: 2 },
        bounds: { stallMs: REPAIRED_MS },
      },
    ],
  },
  {
    ...{ name: 'duplicates', about: '10 % of the packets come twice', duration: '8s' },
    faults: [
      { kind: 'duplicate', at: '2s', for: '4s', duplicate: 0.1, bounds: { stallMs: REPAIRED_MS } },
    ],
  },
  {
    ...{ name: 'reordering', about: '2 % of the packets are passed by others', duration: '8s' },
    faults: [
      { kind: 'reorder', at: '2s', for: '4s', reorder: 0.02, bounds: { stallMs: REPAIRED_MS } },
    ],
  },
  {
    ...{ name: 'pause', about: 'the target stands still for half a second', duration: '8s' },
    // Asked again 604 ms after the last answer, at the latest.
    faults: [{ kind: 'stop', at: '3s', for: 500, bounds: { stallMs: 1200, recoverMs: '3s' } }],
  },
  {
    ...{ name: 'gap', about: 'no packets for 400 ms, one way and then both', duration: '10s' },
    faults: (['in', 'out', 'both'] as const).map((direction, index) => ({
      ...({ kind: 'blackhole', at: 2000 + index * 2500, for: 400, direction } as const),
      bounds: { stallMs: 1200 },
    })),
  },
  {
    ...{ name: 'resize', about: 'the namespace grows twice under load', duration: '6s' },
    faults: [
      { kind: 'resize', at: '2s', percent: 150, bounds: { stallMs: REPAIRED_MS } },
      { kind: 'resize', at: '4s', percent: 200, bounds: { stallMs: REPAIRED_MS } },
    ],
  },
  {
    ...{ name: 'storm', about: 'other hosts connect and disconnect all the time', duration: '8s' },
    faults: [{ kind: 'storm', at: '2s', hosts: 8, rounds: 10, bounds: { stallMs: REPAIRED_MS } }],
  },
  // Those that take a path away for a while.
  {
    ...{ name: 'kill', about: 'a target is killed and started again', duration: '15s' },
    // Reads go elsewhere at once; writes wait for what another target says of them.
    faults: [
      {
        ...{ kind: 'restart', at: '3s', after: '4s' },
        bounds: { stallMs: 500, readStallMs: 50, detectMs: 50, ...RETURN },
      },
    ],
  },
  {
    ...{ name: 'terminate', about: 'a target is stopped in good order', duration: '15s' },
    faults: [
      {
        ...{ kind: 'terminate', at: '3s', after: '4s' },
        bounds: { stallMs: 20, ...RETURN },
      },
    ],
  },
  {
    ...{ name: 'blackhole', about: 'no packets for 8 s, each way in turn', duration: '60s' },
    faults: (['in', 'out', 'both'] as const).map((direction, index) => ({
      ...({ kind: 'blackhole', at: 3000 + index * 18_000, for: 8000, direction } as const),
      bounds: { stallMs: 2000, ...SILENCE },
    })),
  },
  {
    ...{ name: 'freeze', about: 'a target stands still for 10 s', duration: '25s' },
    faults: [{ kind: 'stop', at: '3s', for: '10s', bounds: { stallMs: 2000, ...SILENCE } }],
  },
  {
    ...{ name: 'ana', about: 'a path becomes inaccessible and comes back', duration: '10s' },
    faults: [{ kind: 'ana', at: '3s', for: '3s', state: 'inaccessible', bounds: { stallMs: 50 } }],
  },
];
