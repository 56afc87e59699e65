/** Namespaces of a subsystem. Each change answers when it holds for all I/O, and hosts get an event. */
import { z } from 'zod';
import { NvmeofError } from '../../native/common/errors.ts';
import { namespaceSchema, sizeSchema } from '../config.ts';
import type { Target } from '../target.ts';
import type { NamespaceView } from '../views.ts';
import { method } from './method.ts';
import type { Method } from './method.ts';
import { done, inSubsystem, namespaceView, nqn, oneNamespace } from './schemas.ts';
import { subsystemOf } from './subsystem-methods.ts';

const EXAMPLE = { nqn: 'nqn.2024-01.com.example:disks', nsid: 1 };

/** Throws NAMESPACE_UNKNOWN: it may have gone since the change. */
function namespaceOf(target: Target, subsystem: string, id: number): NamespaceView {
  const found = subsystemOf(target, subsystem).namespaces.find((one) => one.nsid === id);
  if (found) return found;
  throw new NvmeofError('NAMESPACE_UNKNOWN', `${subsystem} has no namespace ${id}`, {
    object: `${subsystem} namespace ${id}`,
  });
}

/** What it is after a change. */
async function after(
  target: Target,
  { nqn: subsystem, nsid: id }: { readonly nqn: string; readonly nsid: number },
  change: Promise<void>,
): Promise<NamespaceView> {
  await change;
  return namespaceOf(target, subsystem, id);
}

export const NAMESPACE_METHODS: readonly Method[] = [
  method({
    name: 'namespace.list',
    summary: 'Namespaces of a subsystem',
    kind: 'look',
    params: inSubsystem,
    result: z.array(namespaceView),
    example: { nqn: EXAMPLE.nqn },
    run: ({ target }, params) => subsystemOf(target, params.nqn).namespaces,
  }),
  method({
    name: 'namespace.add',
    summary: 'Add a namespace; without nsid it gets the lowest free one',
    kind: 'change',
    params: z.strictObject({ nqn, namespace: namespaceSchema }),
    result: namespaceView,
    example: { nqn: EXAMPLE.nqn, namespace: { path: '/srv/disk.img', blockSize: 4096 } },
    run: async ({ target }, params) => {
      const added = await target.addNamespace(params.nqn, params.namespace);
      return namespaceOf(target, params.nqn, added);
    },
  }),
  method({
    name: 'namespace.remove',
    summary: 'Remove a namespace; answers when none of its I/O is in flight',
    kind: 'change',
    params: oneNamespace,
    result: done,
    example: EXAMPLE,
    run: async ({ target }, params) => {
      await target.removeNamespace(params.nqn, params.nsid);
      return null;
    },
  }),
  method({
    name: 'namespace.enable',
    summary: 'Open a namespace that is disabled, and show it to hosts',
    kind: 'change',
    params: oneNamespace,
    result: namespaceView,
    example: EXAMPLE,
    run: ({ target }, one) => after(target, one, target.enableNamespace(one.nqn, one.nsid)),
  }),
  method({
    name: 'namespace.disable',
    summary: 'Hide a namespace from hosts and close its file; it keeps its place',
    kind: 'change',
    params: oneNamespace,
    result: namespaceView,
    example: EXAMPLE,
    run: ({ target }, one) => after(target, one, target.disableNamespace(one.nqn, one.nsid)),
  }),
  method({
    name: 'namespace.resize',
    summary: 'Grow or shrink a namespace; a file is grown where it is too small, and never cut',
    kind: 'change',
    params: oneNamespace.extend({ size: sizeSchema }),
    result: namespaceView,
    example: { ...EXAMPLE, size: '2GiB' },
    run: ({ target }, one) =>
      after(target, one, target.resizeNamespace(one.nqn, one.nsid, one.size)),
  }),
  method({
    name: 'namespace.protect',
    summary:
      'Switch the write protection of a namespace on or off; answers when that holds for all I/O',
    kind: 'change',
    params: oneNamespace.extend({ writeProtected: z.boolean() }),
    result: namespaceView,
    example: { ...EXAMPLE, writeProtected: true },
    run: ({ target }, one) =>
      after(target, one, target.protectNamespace(one.nqn, one.nsid, one.writeProtected)),
  }),
];
