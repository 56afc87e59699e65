/** The methods of the control socket of a running `nvmeof attach`: what its subsystem and paths are, and changes of the paths. */
import { z } from 'zod';
import { PATH_POLICIES } from '../../../initiator/index.ts';
import type { MultipathSubsystem, PathSpec, PathView } from '../../../initiator/index.ts';
import { NvmeofError, messageOf } from '../../../native/common/errors.ts';
import { method } from '../../../target/control/method.ts';
import type { Method } from '../../../target/control/method.ts';
import { discoverMethod, discoveryDocument } from '../../../target/control/openrpc.ts';
import { done, nothing, onePort } from '../../../target/control/schemas.ts';
import { hostStatus, pathView } from './view.ts';

export interface ServedSocket {
  readonly nsid: number;
  readonly way: string;
  readonly socket: string;
}

export interface HostTools {
  readonly subsystem: MultipathSubsystem;
  readonly served: readonly ServedSocket[];
  readonly version: string;
  /** Our address, for paths that are added. */
  readonly sourceAddress: string | undefined;
}

const onePath = z.strictObject({
  endpoint: z.string({ error: 'must be ADDRESS:PORT as host.status shows it' }),
});
const EXAMPLE = { endpoint: '192.0.2.129:4420' };

function status({ subsystem, served, version }: HostTools): z.input<typeof hostStatus> {
  return {
    ...{
      version,
      pid: process.pid,
      nqn: subsystem.nqn,
      policy: subsystem.policy,
      served: [...served],
    },
    writesHeld: subsystem.counters()['live.multipath.held'] ?? 0,
    paths: subsystem.paths.map((path) => ({ ...path, anaGroups: [...path.anaGroups] })),
    namespaces: subsystem.namespaces.map(({ nsid, bytes, lbaSize, writeProtected, ids }) => ({
      ...{ nsid, lbaSize, writeProtected, uuid: ids.uuid },
      bytes: bytes <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(bytes) : bytes.toString(),
    })),
  };
}

/** A path that cannot be connected at once stays, and is tried again; one that is refused does not. */
async function addPath(subsystem: MultipathSubsystem, spec: PathSpec): Promise<PathView> {
  const before = new Set(subsystem.paths.map(({ endpoint }) => endpoint));
  const added = subsystem.addPath(spec);
  const endpoint = subsystem.paths.find((path) => !before.has(path.endpoint))?.endpoint;
  const view = (): PathView | undefined =>
    subsystem.paths.find((path) => path.endpoint === endpoint);
  try {
    await added;
  } catch (error) {
    const waiting = view();
    if (waiting) return waiting;
    throw error instanceof NvmeofError ? error : new NvmeofError('PATH_REFUSED', messageOf(error));
  }
  const path = view();
  if (path) return path;
  throw new NvmeofError('PATH_REFUSED', 'the path was removed meanwhile');
}

async function removePath(subsystem: MultipathSubsystem, endpoint: string): Promise<null> {
  const left = subsystem.paths.filter(({ state }) => state !== 'removing');
  if (left.length === 1 && left[0]?.endpoint === endpoint) {
    throw new NvmeofError(
      'PATH_LAST',
      `${endpoint} is the last path: add another one first, or stop nvmeof attach`,
    );
  }
  await subsystem.removePath(endpoint);
  return null;
}

const row = <P extends z.ZodType>(
  one: Parameters<typeof method<P, HostTools>>[0],
): Method<HostTools> => method<P, HostTools>(one);

export const HOST_SIDE_METHODS: readonly Method<HostTools>[] = [
  row({
    name: 'host.status',
    summary: 'The subsystem, its paths with their states, its namespaces, and the sockets served',
    kind: 'look',
    params: nothing,
    result: hostStatus,
    example: {},
    run: status,
  }),
  row({
    name: 'path.add',
    summary: 'Add a path; one that cannot be connected at once is tried again',
    kind: 'change',
    params: onePort.extend({ preferred: z.boolean().default(false) }),
    result: pathView,
    example: { address: '192.0.2.129', port: 4420 },
    run: ({ subsystem, sourceAddress }, spec) =>
      addPath(subsystem, { ...spec, ...(sourceAddress === undefined ? {} : { sourceAddress }) }),
  }),
  row({
    name: 'path.remove',
    summary: 'Remove a path, not the last one; answers when its commands have ended',
    kind: 'change',
    params: onePath,
    result: done,
    example: EXAMPLE,
    run: ({ subsystem }, { endpoint }) => removePath(subsystem, endpoint),
  }),
  row({
    name: 'path.reset',
    summary: 'End the association of a live path, which is then connected again',
    kind: 'change',
    params: onePath,
    result: done,
    example: EXAMPLE,
    run: ({ subsystem }, { endpoint }) => {
      subsystem.resetPath(endpoint);
      return null;
    },
  }),
  row({
    name: 'policy.set',
    summary: 'Say how commands choose among equal paths',
    kind: 'change',
    params: z.strictObject({ policy: z.enum(PATH_POLICIES) }),
    result: done,
    example: { policy: 'queue-depth' },
    run: ({ subsystem }, { policy }) => {
      subsystem.setPolicy(policy);
      return null;
    },
  }),
  discoverMethod<HostTools>(({ version }) =>
    discoveryDocument(HOST_SIDE_METHODS, version, 'attach'),
  ),
];
