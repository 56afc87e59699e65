/**
 * What a failover test does and what it demands: faults at times, each with the bounds that I/O must keep through it. The
 * schema of scenario files, with errors that name the place. Holds no behaviour.
 */
import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { NvmeofError, messageOf } from '../../native/common/errors.ts';
import { SCENARIOS } from './scenarios.ts';

const UNITS: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000 };
const TIME_MS_MAX = 3_600_000;

/** Milliseconds, or text with a unit: "500ms", "2s", "1m". */
const time = z
  .union([z.number(), z.string()], { error: 'must be a time: milliseconds, or text like "2s"' })
  .transform((value, context) => {
    const [, digits, unit] = /^(\d+(?:\.\d+)?)(ms|s|m)?$/.exec(value.toString()) ?? [];
    const ms = digits === undefined ? Number.NaN : Number(digits) * (UNITS[unit ?? 'ms'] ?? 1);
    if (ms >= 0 && ms <= TIME_MS_MAX) return ms;
    context.addIssue({
      code: 'custom',
      message: 'must be a time of at most an hour: milliseconds, or text like "500ms" or "2s"',
    });
    return z.NEVER;
  });

const probability = z.number().min(0).max(1);

/** What I/O must keep from a fault on until the next one begins. */
const bounds = z.strictObject({
  /** Between two completions, of reads and of writes. */
  stallMs: time.optional(),
  /** Of reads alone, in place of `stallMs`. */
  readStallMs: time.optional(),
  /** Of either, while a target that the fault ended starts again. */
  returnStallMs: time.optional(),
  /** From the fault until the host says that a path is not live. */
  detectMs: time.optional(),
  /** From the fault until I/O is as fast as before it, for good. */
  recoverMs: time.optional(),
  /** From when a lost path could be used again until the host uses it again, beyond the host's reconnect delay. */
  returnMs: time.optional(),
  /** Requests that fail. */
  errors: z.number().int().min(0).default(0),
});

/** Every fault: when, on which of the targets (counted from 0), and what it may cost. */
const common = {
  at: time,
  target: z.number().int().min(0).max(15).default(0),
  bounds: bounds.default({ errors: 0 }),
};
const direction = z.enum(['in', 'out', 'both']).default('both');

const KINDS = {
  /** SIGKILL; it stays dead. */
  kill: z.strictObject({ kind: z.literal('kill'), ...common }),
  /** SIGKILL, and the same target again after a while. */
  restart: z.strictObject({ kind: z.literal('restart'), ...common, after: time.default(1000) }),
  /** SIGTERM, and the same target again after a while. */
  terminate: z.strictObject({
    ...{ kind: z.literal('terminate'), ...common, after: time.default(1000) },
  }),
  /** SIGSTOP, and SIGCONT after a while. */
  stop: z.strictObject({ kind: z.literal('stop'), ...common, for: time }),
  /** No packet of the target's gets through, in directions as the target sees them. */
  blackhole: z.strictObject({ kind: z.literal('blackhole'), ...common, for: time, direction }),
  loss: z.strictObject({
    ...{ kind: z.literal('loss'), ...common, for: time, direction },
    drop: probability,
  }),
  duplicate: z.strictObject({
    ...{ kind: z.literal('duplicate'), ...common, for: time, direction },
    duplicate: probability,
  }),
  reorder: z.strictObject({
    ...{ kind: z.literal('reorder'), ...common, for: time, direction },
    reorder: probability,
    reorderMs: time.default(1),
  }),
  delay: z.strictObject({
    ...{ kind: z.literal('delay'), ...common, for: time, direction },
    delayMs: time,
    jitterMs: time.default(0),
  }),
  /** ANA state of the namespace's group at this target; with `for`, optimized again afterwards. */
  ana: z.strictObject({
    ...{ kind: z.literal('ana'), ...common },
    state: z.enum(['optimized', 'non-optimized', 'inaccessible']),
    for: time.optional(),
  }),
  /** To so many per cent of the size, which must not cut off what is written. */
  resize: z.strictObject({
    ...{ kind: z.literal('resize'), ...common },
    percent: z.number().int().min(101).max(1000),
  }),
  /** Other hosts connect and disconnect, each so many times. */
  storm: z.strictObject({
    ...{ kind: z.literal('storm'), ...common },
    hosts: z.number().int().min(1).max(64).default(8),
    rounds: z.number().int().min(1).max(1000).default(10),
  }),
} as const;

export type FaultKind = keyof typeof KINDS;

const fault = z.discriminatedUnion('kind', [
  ...([KINDS.kill, KINDS.restart, KINDS.stop, KINDS.blackhole, KINDS.loss] as const),
  ...([KINDS.duplicate, KINDS.reorder, KINDS.delay, KINDS.ana, KINDS.resize] as const),
  ...([KINDS.storm, KINDS.terminate] as const),
]);

export const scenarioSchema = z
  .strictObject({
    name: z
      .string()
      .regex(/^[a-z0-9-]{1,40}$/, 'must be small letters, digits and hyphens, 40 at most'),
    about: z.string().max(200).default(''),
    /** Of the whole run, from the first request on. */
    duration: time,
    faults: z.array(fault).min(1, 'needs at least one fault').max(100),
  })
  .superRefine(({ duration, faults }, context) => {
    const complain = (index: number, key: string, message: string): void => {
      context.addIssue({ code: 'custom', path: ['faults', index, key], message });
    };
    faults.forEach((entry, index) => {
      const before = faults[index - 1];
      if (before && entry.at < before.at)
        complain(index, 'at', 'must not be before the fault above');
      if (entry.at >= duration) complain(index, 'at', 'must be within the duration');
      if (entry.bounds.returnMs !== undefined && !comesBack(entry))
        complain(index, 'bounds', `returnMs: a path that meets ${entry.kind} does not come back`);
      const end = entry.at + lengthOf(entry);
      if (end > duration) complain(index, 'for', `ends at ${end} ms, after the duration`);
    });
  });

export type Scenario = z.output<typeof scenarioSchema>;
export type ScenarioInput = z.input<typeof scenarioSchema>;
export type Fault = Scenario['faults'][number];

/** Milliseconds from its begin until it is taken back; 0: it is not, or ends by itself. */
export function lengthOf(entry: Fault): number {
  if ('after' in entry) return entry.after;
  return 'for' in entry ? (entry.for ?? 0) : 0;
}

/** It is taken back, so that a path that was lost by it may be used again. */
export function comesBack(entry: Fault): boolean {
  return lengthOf(entry) > 0;
}

/** 'faults[0].at: must be …', a line for each problem. */
export function parseScenario(value: unknown, source: string): Scenario {
  const parsed = scenarioSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const lines = parsed.error.issues.map((issue) => {
    const place = issue.path
      .map((part) => (typeof part === 'number' ? `[${part}]` : `.${String(part)}`))
      .join('')
      .replace(/^\./, '');
    const text =
      issue.code === 'unrecognized_keys'
        ? `unknown key ${issue.keys.map((key) => `"${key}"`).join(', ')}; check the spelling`
        : issue.message;
    return place === '' ? text : `${place}: ${text}`;
  });
  throw new NvmeofError('CONFIG_INVALID', `${source}: ${lines.join('\n')}`, { object: source });
}

/** A built-in scenario by its name, JSON in place, or a file of it. */
export async function loadScenario(given: string): Promise<Scenario> {
  const known = SCENARIOS.find(({ name }) => name === given);
  if (known) return parseScenario(known, `scenario ${given}`);
  const inline = given.trimStart().startsWith('{');
  const source = inline ? 'scenario' : given;
  let text = given;
  try {
    if (!inline) text = await readFile(given, 'utf8');
  } catch (error) {
    throw new NvmeofError(
      'CONFIG_UNREADABLE',
      `${given} is neither a scenario (${SCENARIOS.map(({ name }) => name).join(', ')}) nor a file that can be read: ${messageOf(error)}`,
      { object: given, cause: error },
    );
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new NvmeofError('CONFIG_INVALID', `${source}: ${messageOf(error)}`, { object: source });
  }
  return parseScenario(value, source);
}

/** "2 s: black hole (in) at target 0 for 500 ms" */
export function describeFault(entry: Fault): string {
  const detail = DETAILS[entry.kind](entry as never);
  const length = lengthOf(entry);
  const until = length > 0 && !('after' in entry) ? ` for ${length} ms` : '';
  return `${entry.kind}${detail === '' ? '' : ` ${detail}`}${until}, target ${entry.target}`;
}

type Details = {
  readonly [Kind in FaultKind]: (entry: Extract<Fault, { readonly kind: Kind }>) => string;
};
const DETAILS: Details = {
  kill: () => '',
  restart: ({ after }) => `after ${after} ms`,
  terminate: ({ after }) => `after ${after} ms`,
  stop: () => '',
  blackhole: (entry) => entry.direction,
  loss: (entry) => `${entry.drop * 100} % ${entry.direction}`,
  duplicate: (entry) => `${entry.duplicate * 100} % ${entry.direction}`,
  reorder: (entry) => `${entry.reorder * 100} % by ${entry.reorderMs} ms ${entry.direction}`,
  delay: ({ delayMs, jitterMs, direction: way }) =>
    `${delayMs} ms${jitterMs > 0 ? ` + ${jitterMs}` : ''} ${way}`,
  ana: ({ state }) => state,
  resize: ({ percent }) => `to ${percent} %`,
  storm: ({ hosts, rounds }) => `of ${hosts} hosts, ${rounds} times each`,
};
