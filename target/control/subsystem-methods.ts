/** Subsystems come and go. */
import { z } from 'zod';
import { NvmeofError } from '../../native/common/errors.ts';
import { subsystemSchema } from '../config.ts';
import type { Target } from '../target.ts';
import type { SubsystemView } from '../views.ts';
import { method } from './method.ts';
import type { Method } from './method.ts';
import { done, inSubsystem, someSubsystem, subsystemView } from './schemas.ts';

/** Throws SUBSYSTEM_UNKNOWN. */
export function subsystemOf(target: Target, nqn: string): SubsystemView {
  const found = target.subsystems.find((one) => one.nqn === nqn);
  if (found) return found;
  throw new NvmeofError('SUBSYSTEM_UNKNOWN', `there is no subsystem ${nqn}`, { object: nqn });
}

const EXAMPLE_NQN = 'nqn.2024-01.com.example:disks';

export const SUBSYSTEM_METHODS: readonly Method[] = [
  method({
    name: 'subsystem.list',
    summary: 'Subsystems with their hosts and namespaces; nqn: one alone',
    kind: 'look',
    params: someSubsystem,
    result: z.array(subsystemView),
    example: { nqn: EXAMPLE_NQN },
    run: ({ target }, { nqn }) =>
      nqn === undefined ? target.subsystems : [subsystemOf(target, nqn)],
  }),
  method({
    name: 'subsystem.add',
    summary: 'Add a subsystem with all its namespaces, or nothing of it',
    kind: 'change',
    params: subsystemSchema,
    result: subsystemView,
    example: { nqn: EXAMPLE_NQN, namespaces: [{ path: '/srv/disk.img' }] },
    run: async ({ target }, subsystem) => {
      await target.addSubsystem(subsystem);
      return subsystemOf(target, subsystem.nqn);
    },
  }),
  method({
    name: 'subsystem.remove',
    summary: 'End its controllers, then remove a subsystem; answers when nothing of it is left',
    kind: 'change',
    params: inSubsystem,
    result: done,
    example: { nqn: EXAMPLE_NQN },
    run: async ({ target }, { nqn }) => {
      await target.removeSubsystem(nqn);
      return null;
    },
  }),
];
