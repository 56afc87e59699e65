/** Schemas that several methods share: what they take, and what they answer with. */
import { z } from 'zod';
import {
  NSID_MAX,
  namespaceSchema,
  portSchema,
  referralSchema,
  subsystemSchema,
} from '../config.ts';

export const nothing = z.strictObject({});
export const done = z.null();

/** Sizes and counts: text where a JSON number would not be exact. */
const exact = z.union([z.int(), z.string().regex(/^\d+$/)]);

export const nqn = subsystemSchema.shape.nqn;
export const nsid = z.int().min(1).max(NSID_MAX);
export const inSubsystem = z.strictObject({ nqn });
export const someSubsystem = z.strictObject({ nqn: nqn.optional() });
export const oneNamespace = z.strictObject({ nqn, nsid });
export const host = subsystemSchema.shape.hosts.unwrap().element;
export const onePort = z.strictObject({
  address: portSchema.shape.address,
  port: portSchema.shape.port,
});
export const oneReferral = referralSchema.omit({ nqn: true });

export const hostRules = z.strictObject({ allowAnyHost: z.boolean(), hosts: z.array(host) });

export const namespaceView = z.strictObject({
  nsid,
  enabled: z.boolean(),
  source: z.string(),
  size: exact,
  blockSize: namespaceSchema.shape.blockSize.unwrap(),
  cache: namespaceSchema.shape.cache.unwrap(),
  readOnly: z.boolean(),
  writeProtected: z.boolean(),
  uuid: z.string(),
  nguid: z.string(),
});

export const subsystemView = z.strictObject({
  nqn: z.string(),
  serial: z.string(),
  model: z.string(),
  ...hostRules.shape,
  controllers: z.int(),
  removing: z.boolean(),
  namespaces: z.array(namespaceView),
});

export const portView = portSchema.extend({
  id: z.int(),
  provider: z.string(),
  fabric: z.string(),
  pathMtu: z.int(),
});

const summary = {
  subsystemNqn: z.string(),
  cntlid: z.int(),
  hostNqn: z.string(),
  hostId: z.string(),
  peer: z.string(),
};

export const controllerView = z.strictObject({
  ...summary,
  ready: z.boolean(),
  keepAliveMs: z.int(),
  queues: z.array(z.strictObject({ ...summary, qid: z.int(), reactor: z.int(), depth: z.int() })),
});

export const placementView = z.looseObject({
  reactor: z.int(),
  core: z.int(),
  ioQueues: z.int(),
  adminQueues: z.int(),
  load: z.number(),
});

/** The same as the metrics port gives at /statistics. */
export const statistics = z.strictObject({
  atMs: z.number(),
  queues: z.array(z.looseObject({ ...summary, qid: z.int(), reads: z.int(), writes: z.int() })),
  reactors: z.array(z.looseObject({ index: z.int(), core: z.int(), busyNs: z.number() })),
  counters: z.record(z.string(), z.number()),
});
