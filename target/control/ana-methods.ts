/** Asymmetric namespace access: which way to its namespaces a host takes (docs/multipath.md). */
import { z } from 'zod';
import { anaGroupSchema, anaRuleSchema } from '../ana-config.ts';
import { ANA_STATE_NAMES } from '../ana.ts';
import { method } from './method.ts';
import type { Method } from './method.ts';
import { nqn, nsid, someSubsystem } from './schemas.ts';

export const anaView = z.strictObject({
  subsystemNqn: z.string(),
  port: z.string(),
  group: z.int(),
  state: z.enum(ANA_STATE_NAMES),
  nsids: z.array(z.int()),
});

const EXAMPLE = { nqn: 'nqn.2024-01.com.example:disks' };

export const ANA_METHODS: readonly Method[] = [
  method({
    name: 'ana.list',
    summary: 'State of each ANA group at each port, of one subsystem or of all',
    kind: 'look',
    params: someSubsystem,
    result: z.array(anaView),
    example: EXAMPLE,
    run: ({ target }, params) =>
      target.ana.filter((one) => params.nqn === undefined || one.subsystemNqn === params.nqn),
  }),
  method({
    name: 'ana.set',
    summary:
      'Set the state of an ANA group, at one port or at all; answers when it holds for all I/O',
    kind: 'change',
    params: anaRuleSchema.extend({ nqn }),
    result: z.array(anaView),
    example: { ...EXAMPLE, group: 1, state: 'non-optimized', port: '192.0.2.7:4420' },
    run: async ({ target }, { nqn: subsystem, ...rule }) => {
      await target.setAnaState(subsystem, rule);
      return target.ana.filter((one) => one.subsystemNqn === subsystem && one.group === rule.group);
    },
  }),
  method({
    name: 'ana.move',
    summary: 'Move a namespace to another ANA group; answers when nothing of before is in flight',
    kind: 'change',
    params: z.strictObject({ nqn, nsid, group: anaGroupSchema }),
    result: z.array(anaView),
    example: { ...EXAMPLE, nsid: 2, group: 2 },
    run: async ({ target }, params) => {
      await target.setAnaGroup(params.nqn, params.nsid, params.group);
      return target.ana.filter(
        ({ subsystemNqn, nsids }) => subsystemNqn === params.nqn && nsids.includes(params.nsid),
      );
    },
  }),
];
