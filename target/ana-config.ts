/**
 * The parts of a configuration that only targets with several paths need: states of ANA groups, and the controller ids of
 * targets that share a subsystem. Every message says what would be right.
 */
import { z } from 'zod';
import { formatEndpoint, parseAddress, parseEndpoint } from '../native/common/address.ts';
import { messageOf } from '../native/common/errors.ts';
import { CNTLID_MAX, NVME_RDMA_PORT } from '../native/wire/fabrics.ts';
import { ANA_GROUP_MAX, ANA_STATE_NAMES } from './ana.ts';
import type { AnaRule } from './ana.ts';

const groupError = `must be an ANA group, 1 to ${ANA_GROUP_MAX}`;

export const anaGroupSchema = z
  .number(groupError)
  .int(groupError)
  .min(1, groupError)
  .max(ANA_GROUP_MAX, groupError);

const endpoint = z.string().transform((text, context) => {
  try {
    return formatEndpoint(parseEndpoint(text, NVME_RDMA_PORT));
  } catch (error) {
    const message = `${messageOf(error)}; write ADDRESS:PORT of one of the target's ports`;
    context.addIssue({ code: 'custom', message });
    return z.NEVER;
  }
});

export const anaRuleSchema = z.strictObject({
  group: anaGroupSchema,
  state: z.enum(ANA_STATE_NAMES, { error: `must be one of ${ANA_STATE_NAMES.join(', ')}` }),
  /** ADDRESS:PORT; absent: all ports. */
  port: endpoint.optional(),
});

export const anaRulesSchema = z.array(anaRuleSchema).superRefine((rules, context) => {
  const seen = new Set<string>();
  rules.forEach(({ group, port }, index) => {
    const key = `${group} ${port ?? ''}`;
    if (seen.has(key)) {
      const where = port === undefined ? 'all ports' : port;
      context.addIssue({
        code: 'custom',
        path: [index],
        message: `group ${group} has a state for ${where} already; leave one of the two out`,
      });
    }
    seen.add(key);
  });
});

const cntlidError = `must be a controller id, 1 to ${CNTLID_MAX}`;
const cntlid = z
  .number(cntlidError)
  .int(cntlidError)
  .min(1, cntlidError)
  .max(CNTLID_MAX, cntlidError);

/** Controller ids, both included. */
export const cntlidsSchema = z
  .strictObject({ first: cntlid, last: cntlid })
  .refine(({ first, last }) => first <= last, 'first must not be above last; exchange them');
export type ControllerIds = z.output<typeof cntlidsSchema>;

/** Of a port's configuration, as rules name it. */
export function endpointOf({ address, port }: { address: string; port: number }): string {
  return formatEndpoint({ address: parseAddress(address), port });
}

/** Of those whose address is one. */
export function endpointsOf(ports: readonly { address: string; port: number }[]): string[] {
  return ports.flatMap((port) => {
    try {
      return [endpointOf(port)];
    } catch {
      return [];
    }
  });
}

/** A rule for a port that is not there, said with those that are; undefined when it is. */
export function unknownPortProblem({ port }: AnaRule, known: Iterable<string>): string | undefined {
  const ports = [...known];
  if (port === undefined || ports.includes(port)) return undefined;
  const there = ports.length === 0 ? 'there are none' : `the ports are ${ports.join(', ')}`;
  return `no port ${port}: ${there}; name one, or leave "port" out for all`;
}
