/** Which hosts may connect to a subsystem. What a host may no longer do has ended when the answer comes. */
import { z } from 'zod';
import { NvmeofError } from '../../native/common/errors.ts';
import type { HostRules } from '../host-access.ts';
import type { Target } from '../target.ts';
import { method } from './method.ts';
import type { Method } from './method.ts';
import { host, hostRules, nqn } from './schemas.ts';
import { subsystemOf } from './subsystem-methods.ts';

const oneHost = z.strictObject({ nqn, host });
const EXAMPLE = {
  nqn: 'nqn.2024-01.com.example:disks',
  host: 'nqn.2014-08.org.nvmexpress:uuid:4f0b3a52-7a11-4b0e-9f5c-0d3a2f7f1c11',
};

function rulesOf(target: Target, subsystem: string): HostRules {
  const { allowAnyHost, hosts } = subsystemOf(target, subsystem);
  return { allowAnyHost, hosts };
}

export const HOST_METHODS: readonly Method[] = [
  method({
    name: 'host.add',
    summary: 'Let a host connect. Does not end that any host may: host.set does',
    kind: 'change',
    params: oneHost,
    result: hostRules,
    example: EXAMPLE,
    run: async ({ target }, params) => {
      const rules = rulesOf(target, params.nqn);
      if (rules.hosts.includes(params.host)) {
        throw new NvmeofError('HOST_EXISTS', `${params.host} is on the list of ${params.nqn}`, {
          object: params.host,
        });
      }
      await target.setHosts(params.nqn, { ...rules, hosts: [...rules.hosts, params.host] });
      return rulesOf(target, params.nqn);
    },
  }),
  method({
    name: 'host.remove',
    summary:
      'Let a host no longer connect, and end its controllers: none of its writes comes later',
    kind: 'change',
    params: oneHost,
    result: hostRules,
    example: EXAMPLE,
    run: async ({ target }, params) => {
      const rules = rulesOf(target, params.nqn);
      if (!rules.hosts.includes(params.host)) {
        throw new NvmeofError(
          'HOST_UNKNOWN',
          `${params.host} is not on the list of ${params.nqn}`,
          {
            object: params.host,
          },
        );
      }
      if (rules.allowAnyHost) {
        throw new NvmeofError(
          'HOST_ANY',
          `any host may connect to ${params.nqn}, on the list or not: name those that may with host.set`,
          { object: params.nqn },
        );
      }
      const hosts = rules.hosts.filter((one) => one !== params.host);
      await target.setHosts(params.nqn, { ...rules, hosts });
      return rulesOf(target, params.nqn);
    },
  }),
  method({
    name: 'host.set',
    summary: 'Name the hosts that may connect, and end the controllers of all others',
    kind: 'change',
    params: z.strictObject({
      nqn,
      allowAnyHost: z.boolean().default(false),
      hosts: z.array(host).default([]),
    }),
    result: hostRules,
    example: { nqn: EXAMPLE.nqn, hosts: [EXAMPLE.host] },
    run: async ({ target }, { allowAnyHost, hosts, ...params }) => {
      await target.setHosts(params.nqn, { allowAnyHost, hosts: [...new Set(hosts)] });
      return rulesOf(target, params.nqn);
    },
  }),
];
