/**
 * What a target is told to export: the schema of the configuration file and of `Target.start`. Every error names the place in
 * the file and what would be right there. Holds no behaviour; identities that are left out are derived in identity.ts.
 */
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import { isWildcard, parseAddress, sameAddress } from '../native/common/address.ts';
import type { Address } from '../native/common/address.ts';
import { isUuid, nqnProblem } from '../native/common/nqn.ts';
import { parseSize } from '../native/common/size.ts';
import { CNTLID_MAX, DISCOVERY_NQN, NVME_RDMA_PORT } from '../native/wire/fabrics.ts';
import {
  anaGroupSchema,
  anaRulesSchema,
  cntlidsSchema,
  endpointsOf,
  unknownPortProblem,
} from './ana-config.ts';
import { completeIdentities } from './identity.ts';

export const NSID_MAX = 4096;
export const QUEUE_DEPTH_MIN = 32;
export const QUEUE_DEPTH_MAX = 1024;
export const MAX_QUEUES_MAX = 1024;
const CORE_MAX = 4095;
export const COMMAND_QUIESCE_MS_DEFAULT = 10_000;
export const IN_CAPSULE_BYTES_MAX = 16_384;
export const IN_CAPSULE_BYTES_DEFAULT = 4096;

/** Text with units, a byte count, or (from programs) a bigint. */
export const sizeSchema = z
  .union([z.string(), z.number(), z.bigint()], {
    error: 'must be a size: bytes, or text like "256MiB"',
  })
  .transform((value, context) => {
    try {
      return parseSize(value.toString());
    } catch (error) {
      context.addIssue({ code: 'custom', message: messageOf(error) });
      return z.NEVER;
    }
  });

const address = z.string().superRefine((text, context) => {
  try {
    parseAddress(text);
  } catch (error) {
    context.addIssue({
      code: 'custom',
      message: `${messageOf(error)}; write an address of this machine such as 192.0.2.1 or ::1`,
    });
  }
});

const nqn = z.string().superRefine((text, context) => {
  const problem = nqnProblem(text);
  if (problem === undefined) return;
  context.addIssue({
    code: 'custom',
    message: `the NQN ${problem}; write one like nqn.2024-01.com.example:disk1`,
  });
});

const printable = (length: number, what: string): z.ZodString =>
  z
    .string()
    .regex(/^[\x20-\x7e]+$/, `${what} must be printable ASCII`)
    .max(length, `${what} has at most ${length} characters`);

const hex = (bytes: number): z.ZodString =>
  z.string().regex(new RegExp(`^[0-9a-fA-F]{${bytes * 2}}$`), `must be ${bytes * 2} hex digits`);

/** The core that a port names and the target does not run on, said with what to do about it. */
export function coreProblem(core: number, targetCores: readonly number[]): string | undefined {
  if (targetCores.includes(core)) return undefined;
  const pinned = targetCores.filter((one) => one >= 0);
  return pinned.length === 0
    ? `core ${core} is none of the target's: its reactors are not pinned; write ${core} into the target's "cores"`
    : `core ${core} is none of the target's cores ${pinned.join(', ')}; name one of these, or add it to the target's "cores"`;
}

/** Cores of the target that the queues of a port run on. */
const portCores = z
  .array(z.number().int().min(0).max(CORE_MAX))
  .min(1, 'needs at least one core; leave it out for all of the target')
  .superRefine((cores, context) => {
    cores.forEach((core, index) => {
      if (cores.indexOf(core) === index) return;
      context.addIssue({
        code: 'custom',
        path: [index],
        message: `core ${core} is named twice; name it once`,
      });
    });
  });

export const portSchema = z.strictObject({
  address,
  port: z.number().int().min(1).max(65535).default(NVME_RDMA_PORT),
  inCapsuleBytes: z
    .number()
    .int()
    .min(0)
    .max(IN_CAPSULE_BYTES_MAX)
    .multipleOf(16)
    .default(IN_CAPSULE_BYTES_DEFAULT),
  queueDepth: z.number().int().min(QUEUE_DEPTH_MIN).max(QUEUE_DEPTH_MAX).default(128),
  /** I/O queues of one controller. */
  maxQueues: z.number().int().min(1).max(MAX_QUEUES_MAX).default(64),
  /** Absent: all of the target. */
  cores: portCores.optional(),
});

/** A discovery service elsewhere that hosts are told of (NVMe Base 2.1 section 5.1.12.3.1, subsystem type 1). */
export const referralSchema = z.strictObject({
  address: address.refine(
    (text) => !text.includes('%'),
    'a zone means something on one machine only; write an address that hosts reach without one',
  ),
  port: z.number().int().min(1).max(65535).default(NVME_RDMA_PORT),
  /** Name of that discovery subsystem. */
  nqn: nqn.default(DISCOVERY_NQN),
  transport: z.enum(['rdma', 'tcp']).default('rdma'),
});

interface FileKeys {
  readonly size?: bigint | undefined;
  readonly cache: string;
  readonly shared: boolean;
}

/**
 * Keys of a namespace that mean nothing without a path. Saved configurations hold the defaults, so only other values are
 * refused.
 */
const FILE_KEYS: readonly {
  readonly key: keyof FileKeys;
  readonly set: (namespace: FileKeys) => boolean;
  readonly fix: string;
}[] = [
  {
    key: 'size',
    set: ({ size }) => size !== undefined,
    fix: 'write the size as the value of "KIND"',
  },
  { key: 'cache', set: ({ cache }) => cache !== 'write-back', fix: 'leave it out' },
  { key: 'shared', set: ({ shared }) => shared, fix: 'leave it out' },
];

export const namespaceSchema = z
  .strictObject({
    /** Absent: the lowest free one. */
    nsid: z.number().int().min(1).max(NSID_MAX).optional(),
    path: z.string().min(1).optional(),
    memory: sizeSchema.optional(),
    null: sizeSchema.optional(),
    /** Of a file; absent: what the file has. */
    size: sizeSchema.optional(),
    blockSize: z
      .union([z.literal(512), z.literal(4096)], { error: 'must be 512 or 4096' })
      .default(512),
    readOnly: z.boolean().default(false),
    /** Hosts may not write; unlike readOnly it is changed while the target runs. */
    writeProtected: z.boolean().default(false),
    uuid: z.string().refine(isUuid, 'must be a UUID').optional(),
    nguid: hex(16).optional(),
    cache: z.enum(['write-back', 'write-through', 'direct']).default('write-back'),
    /** Skip the lock that keeps a backing to one namespace. */
    shared: z.boolean().default(false),
    /** For tests of failover: every write is held that long before it reaches the backing. */
    delayWritesMs: z.number().int().min(0).max(600_000).default(0),
    enabled: z.boolean().default(true),
    anaGroup: anaGroupSchema.default(1),
  })
  .superRefine((namespace, context) => {
    const sources = [namespace.path, namespace.memory, namespace.null].filter(
      (source) => source !== undefined,
    );
    if (sources.length !== 1) {
      context.addIssue({
        code: 'custom',
        message: 'needs exactly one of "path", "memory" and "null"',
      });
    }
    const kind = namespace.memory === undefined ? 'null' : 'memory';
    const fixed = namespace.memory ?? namespace.null;
    if (fixed !== undefined && namespace.path === undefined) {
      for (const { key, set, fix } of FILE_KEYS) {
        if (!set(namespace)) continue;
        const message = `goes with "path" only, not with "${kind}"; ${fix.replace('KIND', kind)}`;
        context.addIssue({ code: 'custom', path: [key], message });
      }
    }
    if (fixed !== undefined && (fixed === 0n || fixed % BigInt(namespace.blockSize) !== 0n)) {
      context.addIssue({
        code: 'custom',
        message: `the size must be a multiple of the block size ${namespace.blockSize}, and not 0`,
      });
    }
  });

export const subsystemSchema = z
  .strictObject({
    nqn: nqn.refine((text) => text !== DISCOVERY_NQN, 'is the discovery NQN: choose your own'),
    serial: printable(20, 'the serial number').optional(),
    model: printable(40, 'the model').default('nvmeof'),
    /** Default: true when no hosts are listed. */
    allowAnyHost: z.boolean().optional(),
    hosts: z.array(nqn).default([]),
    /** Controller ids of this target; targets that share a subsystem need ranges that do not meet. */
    cntlids: cntlidsSchema.default({ first: 1, last: CNTLID_MAX }),
    /** CQT: how long commands in a backing may last after the end of their controller, ms. */
    commandQuiesceMs: z.number().int().min(1).max(0xffff).default(COMMAND_QUIESCE_MS_DEFAULT),
    namespaces: z.array(namespaceSchema).default([]),
    /** States of ANA groups; those not named are optimized. */
    ana: anaRulesSchema.default([]),
  })
  .superRefine((subsystem, context) => {
    const seen = new Set<number>();
    subsystem.namespaces.forEach(({ nsid }, index) => {
      if (nsid === undefined) return;
      if (seen.has(nsid)) {
        context.addIssue({
          code: 'custom',
          path: ['namespaces', index, 'nsid'],
          message: `nsid ${nsid} is used twice; give one of them another, or leave it out for a free one`,
        });
      }
      seen.add(nsid);
    });
  });

/** The entry that is the same as an earlier one, for a message that names both; -1: none. */
function earlier<T>(all: readonly T[], index: number, same: (a: T, b: T) => boolean): number {
  const one = all[index] as T;
  return all.slice(0, index).findIndex((other) => same(other, one));
}

/** Undefined for what is no address: that is told where it stands. */
function addressOf(text: string): Address | undefined {
  try {
    return parseAddress(text);
  } catch {
    return undefined;
  }
}

type Place = Pick<PortConfig, 'address' | 'port'>;

/** Whether two ports would listen in one place. */
export function portsOverlap(a: Place, b: Place): boolean {
  const [first, second] = [addressOf(a.address), addressOf(b.address)];
  if (!first || !second || a.port !== b.port || first.family !== second.family) return false;
  return isWildcard(first) || isWildcard(second) || sameAddress(first, second);
}

/** Whether two referrals lead to one discovery service. */
export function sameReferral(
  a: Place & Pick<ReferralConfig, 'transport'>,
  b: Place & Pick<ReferralConfig, 'transport'>,
): boolean {
  const [first, second] = [addressOf(a.address), addressOf(b.address)];
  if (!first || !second || a.port !== b.port) return false;
  return a.transport === b.transport && sameAddress(first, second);
}

export const targetSchema = z
  .strictObject({
    ports: z.array(portSchema).min(1, 'needs at least one port to listen on'),
    subsystems: z.array(subsystemSchema).default([]),
    referrals: z.array(referralSchema).default([]),
    /** Where `nvmeof target` opens its control socket; false: nowhere. Absent: its default place. */
    control: z
      .union([z.string().min(1), z.literal(false)], {
        error: 'must be the path of a socket, or false for none',
      })
      .optional(),
    /** One reactor per entry, pinned to that core; -1: not pinned. Absent: those that run, else one. */
    cores: z.array(z.number().int().min(-1)).min(1).optional(),
    pollForever: z.boolean().default(false),
    provider: z.enum(['auto', 'soft', 'verbs']).default('auto'),
    /** RoCE path MTU; absent: what the interface carries. */
    mtu: z
      .union([z.literal(256), z.literal(512), z.literal(1024), z.literal(2048), z.literal(4096)], {
        error: 'must be 256, 512, 1024, 2048 or 4096',
      })
      .optional(),
    /** ICRC check of IPv4 packets on soft; full needs CAP_NET_RAW. Absent: recovered. */
    icrc: z.enum(['recovered', 'full']).optional(),
    /** Bytes asked for each socket's buffers on soft; the kernel may grant less. Absent: 4 MiB. */
    socketBufferBytes: z
      .number()
      .int()
      .min(4096)
      .max(1 << 30)
      .optional(),
    /** File that takes every packet, for Wireshark. */
    pcap: z.string().min(1).optional(),
  })
  .superRefine((target, context) => {
    target.ports.forEach(({ cores = [] }, port) => {
      cores.forEach((core, index) => {
        const message = coreProblem(core, target.cores ?? [-1]);
        if (message === undefined) return;
        context.addIssue({ code: 'custom', path: ['ports', port, 'cores', index], message });
      });
    });
    target.ports.forEach(({ address: where, port }, index) => {
      const other = earlier(target.ports, index, portsOverlap);
      if (other < 0) return;
      context.addIssue({
        code: 'custom',
        path: ['ports', index],
        message: `${where} port ${port} is that of ports[${other}]; give it another address or port, or leave it out`,
      });
    });
    target.referrals.forEach(({ address: where, port }, index) => {
      const other = earlier(target.referrals, index, sameReferral);
      if (other < 0) return;
      context.addIssue({
        code: 'custom',
        path: ['referrals', index],
        message: `${where} port ${port} is that of referrals[${other}]; leave it out`,
      });
    });
    const endpoints = endpointsOf(target.ports);
    const seen = new Set<string>();
    target.subsystems.forEach((subsystem, index) => {
      subsystem.ana.forEach((rule, at) => {
        const message = unknownPortProblem(rule, endpoints);
        if (message === undefined) return;
        context.addIssue({
          code: 'custom',
          path: ['subsystems', index, 'ana', at, 'port'],
          message,
        });
      });
      if (seen.has(subsystem.nqn)) {
        context.addIssue({
          code: 'custom',
          path: ['subsystems', index, 'nqn'],
          message: `${subsystem.nqn} is used twice; write its namespaces into one entry, or rename one`,
        });
      }
      seen.add(subsystem.nqn);
    });
  });

/** What a person or program writes. */
export type TargetOptions = z.input<typeof targetSchema>;
export type PortOptions = z.input<typeof portSchema>;
export type SubsystemOptions = z.input<typeof subsystemSchema>;
export type NamespaceOptions = z.input<typeof namespaceSchema>;
export type ReferralOptions = z.input<typeof referralSchema>;

/** After the schema: defaults filled in, sizes as bigint. */
export type TargetConfig = z.output<typeof targetSchema>;
export type PortConfig = z.output<typeof portSchema>;
export type SubsystemConfig = z.output<typeof subsystemSchema>;
export type NamespaceConfig = z.output<typeof namespaceSchema>;
export type ReferralConfig = z.output<typeof referralSchema>;

/** 'subsystems[0].namespaces[1].path' */
function formatPath(path: readonly PropertyKey[]): string {
  return path
    .map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`))
    .join('')
    .replace(/^\./, '');
}

/** A place in a value and what is wrong there; path '' is the value itself. */
export interface Problem {
  readonly path: string;
  readonly message: string;
}

export function problemsOf({ issues }: z.ZodError): Problem[] {
  return issues.map((issue) => ({
    path: formatPath(issue.path),
    message:
      issue.code === 'unrecognized_keys'
        ? `unknown key ${issue.keys.map((key) => `"${key}"`).join(', ')}; check the spelling`
        : issue.message,
  }));
}

export function formatProblem({ path, message }: Problem): string {
  return path === '' ? message : `${path}: ${message}`;
}

/** Checks a value against a schema; throws CONFIG_INVALID that lists every problem with its place. */
export function check<S extends z.ZodType>(schema: S, value: unknown, source: string): z.output<S> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const problems = problemsOf(parsed.error).map(formatProblem);
  throw new NvmeofError('CONFIG_INVALID', `${source}: ${problems.join('\n')}`, { object: source });
}

/** Checks options and derives the identities that are left out. */
export function parseConfig(value: unknown, source = 'configuration'): TargetConfig {
  return completeIdentities(check(targetSchema, value, source));
}

/** `overrides` replace keys of the file before it is checked: what one key may be can depend on another. */
export async function loadConfig(
  path: string,
  overrides: Partial<TargetOptions> = {},
): Promise<TargetConfig> {
  let text: string;
  try {
    text = await readFile(path, 'utf8');
  } catch (error) {
    throw new NvmeofError('CONFIG_UNREADABLE', `${path}: ${messageOf(error)}`, {
      object: path,
      cause: error,
    });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new NvmeofError('CONFIG_INVALID', `${path}: not JSON: ${messageOf(error)}`, {
      object: path,
      cause: error,
    });
  }
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  return parseConfig(isObject ? { ...(value as object), ...overrides } : value, path);
}

/** The configuration as JSON, with every identity written out. Sizes become byte counts. */
export function formatConfig(config: TargetConfig): string {
  const plain = (_key: string, value: unknown): unknown =>
    typeof value === 'bigint' ? value.toString() : value;
  return JSON.stringify(completeIdentities(config), plain, 2) + '\n';
}
