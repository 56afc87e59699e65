/** What a running `nvmeof attach` shows of itself: the form of the answers of its control socket, and a tree of it for people. */
import { z } from 'zod';
import { formatSize } from '../../../native/common/size.ts';

/** Text where a JSON number would not be exact. */
const exact = z.union([z.int(), z.string().regex(/^\d+$/)]);

export const pathView = z.strictObject({
  endpoint: z.string(),
  state: z.string(),
  /** Why it is not live. */
  reason: z.string(),
  preferred: z.boolean(),
  cntlid: z.int().optional(),
  queues: z.int(),
  queuesAsked: z.int(),
  anaGroups: z.array(
    z.strictObject({ id: z.int(), state: z.string(), nsids: z.array(z.int()).readonly() }),
  ),
  attempts: z.int(),
  nextAttemptMs: z.number().optional(),
});

export const hostStatus = z.strictObject({
  version: z.string(),
  pid: z.int(),
  nqn: z.string(),
  policy: z.string(),
  /** Of this process: they wait until a lost controller can do nothing more. */
  writesHeld: z.int(),
  paths: z.array(pathView),
  namespaces: z.array(
    z.strictObject({
      nsid: z.int(),
      bytes: exact,
      lbaSize: z.int(),
      writeProtected: z.boolean(),
      uuid: z.string().optional(),
    }),
  ),
  served: z.array(z.strictObject({ nsid: z.int(), way: z.string(), socket: z.string() })),
});

export type HostStatus = z.output<typeof hostStatus>;
type PathStatus = z.output<typeof pathView>;

/** Address and port of "192.0.2.1:4420" or "[2001:db8::1]:4420". */
function transport(endpoint: string): string {
  const colon = endpoint.lastIndexOf(':');
  const address = endpoint.slice(0, colon).replace(/^\[(.*)\]$/, '$1');
  return `traddr=${address},trsvcid=${endpoint.slice(colon + 1)}`;
}

/** One word where all groups agree, which is so with a single one. */
function anaText(groups: PathStatus['anaGroups']): string {
  const states = [...new Set(groups.map(({ state }) => state))];
  if (states.length <= 1) return states[0] ?? '';
  return groups.map(({ id, state }) => `group ${id} ${state}`).join(', ');
}

function whenText({ attempts, nextAttemptMs }: PathStatus): string {
  if (nextAttemptMs === undefined) return '';
  return `attempt ${attempts + 1} in ${(nextAttemptMs / 1000).toFixed(1)} s`;
}

function pathLine(path: PathStatus): string {
  const live = path.state === 'live' ? anaText(path.anaGroups) : '';
  const notes = [
    path.reason,
    path.state === 'live' ? '' : whenText(path),
    path.preferred ? 'preferred' : '',
  ].filter((text) => text !== '');
  const about = notes.length === 0 ? '' : ` (${notes.join('; ')})`;
  const ana = live === '' ? '' : ` ${live}`;
  return ` +- ${transport(path.endpoint)} ${path.state}${ana}${about}`;
}

export function statusTree(status: HostStatus): string[] {
  const { nqn, pid, policy, writesHeld, paths, namespaces, served } = status;
  const held = writesHeld === 0 ? '' : `, ${writesHeld} writes wait for a fence`;
  return [
    `${nqn} - process ${pid}, ${policy}${held}`,
    '\\',
    ...paths.map(pathLine),
    ...namespaces.map(
      ({ nsid, bytes, lbaSize, writeProtected, uuid }) =>
        ` +- namespace ${nsid}: ${formatSize(BigInt(bytes))}, blocks of ${lbaSize} bytes` +
        `${writeProtected ? ', read-only' : ''}${uuid === undefined ? '' : `, UUID ${uuid}`}`,
    ),
    ...served.map(({ nsid, way, socket }) => ` +- serves namespace ${nsid}: ${way} ${socket}`),
  ];
}
