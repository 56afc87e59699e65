/** Where hosts connect, and where they are told to look besides. */
import { z } from 'zod';
import { portSchema, portsOverlap, referralSchema } from '../config.ts';
import { method } from './method.ts';
import type { Method } from './method.ts';
import { done, nothing, onePort, oneReferral, portView } from './schemas.ts';

const PORT_EXAMPLE = { address: '192.0.2.7', port: 4421 };
const REFERRAL_EXAMPLE = { address: '192.0.2.8' };

export const PORT_METHODS: readonly Method[] = [
  method({
    name: 'port.list',
    summary: 'Where the target listens, and on what device',
    kind: 'look',
    params: nothing,
    result: z.array(portView),
    example: {},
    run: ({ target }) => target.ports,
  }),
  method({
    name: 'port.add',
    summary: 'Listen at one more address or port',
    kind: 'change',
    params: portSchema,
    result: portView,
    example: PORT_EXAMPLE,
    run: async ({ target }, port) => {
      await target.addPort(port);
      return target.ports.find((one) => portsOverlap(one, port));
    },
  }),
  method({
    name: 'port.remove',
    summary: 'End the associations that came in at a port, and listen there no more',
    kind: 'change',
    params: onePort,
    result: done,
    example: PORT_EXAMPLE,
    run: async ({ target }, { address, port }) => {
      await target.removePort(address, port);
      return null;
    },
  }),
  method({
    name: 'referral.list',
    summary: 'Discovery services elsewhere that hosts are told of',
    kind: 'look',
    params: nothing,
    result: z.array(referralSchema),
    example: {},
    run: ({ target }) => target.referrals.all,
  }),
  method({
    name: 'referral.add',
    summary: 'Tell hosts of a discovery service elsewhere',
    kind: 'change',
    params: referralSchema,
    result: z.array(referralSchema),
    example: REFERRAL_EXAMPLE,
    run: ({ target }, referral) => {
      target.referrals.add(referral);
      return target.referrals.all;
    },
  }),
  method({
    name: 'referral.remove',
    summary: 'Tell hosts of it no more',
    kind: 'change',
    params: oneReferral,
    result: z.array(referralSchema),
    example: REFERRAL_EXAMPLE,
    run: ({ target }, referral) => {
      target.referrals.remove(referral);
      return target.referrals.all;
    },
  }),
];
