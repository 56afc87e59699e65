/**
 * Brings a running target to another configuration: what is the same stays untouched, the difference becomes steps that hosts see as
 * single changes. When one fails, those before it are undone in reverse order.
 *
 * Order: what something new takes the place of goes first, then everything that can fail comes, then what hosts lose.
 */
import { isDeepStrictEqual } from 'node:util';
import { formatAddress, parseAddress } from '../native/common/address.ts';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import { portsOverlap, sameReferral } from './config.ts';
import { absolutePaths } from './save-config.ts';
import type {
  NamespaceConfig,
  PortConfig,
  ReferralConfig,
  SubsystemConfig,
  TargetConfig,
} from './config.ts';
import type { AnaRule } from './ana.ts';
import type { Target } from './target.ts';

type Act = (target: Target) => Promise<unknown>;

export interface Step {
  /** For people: 'add port 127.0.0.1:4421'. */
  readonly what: string;
  readonly phase: 'vacate' | 'add' | 'change' | 'remove';
  readonly run: Act;
  readonly undo: Act;
}

const PHASES: readonly Step['phase'][] = ['vacate', 'add', 'change', 'remove'];

/** A namespace as both sides have it after their identities are complete. */
type Numbered = NamespaceConfig & { readonly nsid: number };
const numbered = (namespaces: readonly NamespaceConfig[]): Numbered[] =>
  namespaces.map((one) => ({ ...one, nsid: one.nsid ?? 0 }));

function reverse({ what, run, undo }: Step, phase: Step['phase']): Step {
  return { what: what.replace(/^add /, 'remove '), phase, run: undo, undo: run };
}

function addPort(port: PortConfig): Step {
  const { address, port: number } = port;
  return {
    what: `add port ${address} ${number}`,
    phase: 'add',
    run: (target) => target.addPort(port),
    undo: (target) => target.removePort(address, number),
  };
}

function addReferral(referral: ReferralConfig): Step {
  return {
    what: `add referral ${referral.transport} ${referral.address} ${referral.port}`,
    phase: 'add',
    run: (target) => {
      target.referrals.add(referral);
      return Promise.resolve();
    },
    undo: (target) => {
      const { transport, address, port } = referral;
      target.referrals.remove({ transport, address, port });
      return Promise.resolve();
    },
  };
}

function addSubsystem(subsystem: SubsystemConfig): Step {
  return {
    what: `add subsystem ${subsystem.nqn}`,
    phase: 'add',
    run: (target) => target.addSubsystem(subsystem),
    undo: (target) => target.removeSubsystem(subsystem.nqn),
  };
}

function addNamespace(nqn: string, namespace: Numbered): Step {
  return {
    what: `add namespace ${namespace.nsid} of ${nqn}`,
    phase: 'add',
    run: (target) => target.addNamespace(nqn, namespace),
    undo: (target) => target.removeNamespace(nqn, namespace.nsid),
  };
}

interface Compared<T> {
  readonly now: readonly T[];
  readonly wanted: readonly T[];
  /** Whether two are one thing, perhaps with other settings. */
  readonly same: (a: T, b: T) => boolean;
  readonly add: (one: T) => Step;
  /** Steps from one set of settings to another; undefined: it has to go and come back. */
  readonly change: (now: T, wanted: T) => Step[] | undefined;
  /** Whether it must be gone before what is new can come. */
  readonly inTheWay?: (one: T) => boolean;
}

function compare<T>({ now, wanted, same, add, change, inTheWay }: Compared<T>): Step[] {
  const kept = wanted.flatMap((one) => {
    const old = now.find((other) => same(other, one));
    if (old === undefined) return [add(one)];
    return change(old, one) ?? [reverse(add(old), 'vacate'), add(one)];
  });
  const gone = now
    .filter((old) => !wanted.some((one) => same(old, one)))
    .map((old) => reverse(add(old), inTheWay?.(old) === true ? 'vacate' : 'remove'));
  return [...kept, ...gone];
}

const sizeOf = ({ memory, null: nothing, size }: Numbered): bigint | undefined =>
  memory ?? nothing ?? size;

/** What a target changes while it is there; all else makes it another thing, keys of later versions too. */
const LIVE_KEYS = {
  target: ['ports', 'subsystems', 'referrals'],
  subsystem: ['allowAnyHost', 'hosts', 'namespaces', 'ana'],
  namespace: ['memory', 'null', 'size', 'writeProtected', 'enabled', 'anaGroup'],
} as const;

/** The keys outside the list whose values differ. */
function changedKeys<T extends object>(now: T, wanted: T, live: readonly string[]): string[] {
  const keys = new Set([...Object.keys(now), ...Object.keys(wanted)]);
  return [...keys].filter(
    (key) => !live.includes(key) && !isDeepStrictEqual(now[key as keyof T], wanted[key as keyof T]),
  );
}

/** Where its size stands; a size of a file that is left out is the file's own. */
const sizeKey = ({ memory, null: nothing, size }: Numbered): string => {
  if (memory !== undefined) return 'memory';
  if (nothing !== undefined) return 'null';
  return size === undefined ? 'file' : 'size';
};

function changeNamespace(nqn: string, now: Numbered, wanted: Numbered): Step[] | undefined {
  if (sizeKey(now) !== sizeKey(wanted)) return undefined;
  if (changedKeys(now, wanted, LIVE_KEYS.namespace).length > 0) return undefined;
  const { nsid } = now;
  const name = `namespace ${nsid} of ${nqn}`;
  const [oldSize, newSize] = [sizeOf(now), sizeOf(wanted)];
  const steps: Step[] = [];
  const toggle = (enabled: boolean): Act =>
    enabled
      ? (target) => target.enableNamespace(nqn, nsid)
      : (target) => target.disableNamespace(nqn, nsid);
  if (!now.enabled && wanted.enabled) {
    steps.push({ what: `enable ${name}`, phase: 'add', run: toggle(true), undo: toggle(false) });
  }
  if (oldSize !== undefined && newSize !== undefined && oldSize !== newSize) {
    const resize =
      (size: bigint): Act =>
      (target) =>
        target.resizeNamespace(nqn, nsid, size);
    const what = `resize ${name} to ${newSize} bytes`;
    steps.push({ what, phase: 'add', run: resize(newSize), undo: resize(oldSize) });
  }
  if (now.writeProtected !== wanted.writeProtected) {
    const protect =
      (on: boolean): Act =>
      (target) =>
        target.protectNamespace(nqn, nsid, on);
    const what = `${wanted.writeProtected ? 'protect' : 'unprotect'} ${name}`;
    const { writeProtected: on } = wanted;
    steps.push({ what, phase: 'change', run: protect(on), undo: protect(!on) });
  }
  if (now.anaGroup !== wanted.anaGroup) {
    const move =
      (group: number): Act =>
      (target) =>
        target.setAnaGroup(nqn, nsid, group);
    const what = `move ${name} to ANA group ${wanted.anaGroup}`;
    steps.push({ what, phase: 'change', run: move(wanted.anaGroup), undo: move(now.anaGroup) });
  }
  if (now.enabled && !wanted.enabled) {
    const what = `disable ${name}`;
    steps.push({ what, phase: 'change', run: toggle(false), undo: toggle(true) });
  }
  return steps;
}

/** Groups as a whole first, then what single ports have otherwise; those without a rule are optimized. */
function setAnaRules(nqn: string, rules: readonly AnaRule[], before: readonly AnaRule[]): Act {
  const groups = new Set([...rules, ...before].map(({ group }) => group));
  const whole = [...groups].map(
    (group): AnaRule =>
      rules.find((rule) => rule.group === group && rule.port === undefined) ?? {
        group,
        state: 'optimized',
      },
  );
  return async (target) => {
    for (const rule of [...whole, ...rules.filter(({ port }) => port !== undefined)]) {
      await target.setAnaState(nqn, rule);
    }
  };
}

function changeSubsystem(
  now: SubsystemConfig,
  wanted: SubsystemConfig,
  paths: ReadonlySet<string>,
): Step[] | undefined {
  if (changedKeys(now, wanted, LIVE_KEYS.subsystem).length > 0) return undefined;
  const { nqn } = now;
  const steps = compare<Numbered>({
    now: numbered(now.namespaces),
    wanted: numbered(wanted.namespaces),
    same: (a, b) => a.nsid === b.nsid,
    add: (one) => addNamespace(nqn, one),
    change: (a, b) => changeNamespace(nqn, a, b),
    inTheWay: ({ path }) => path !== undefined && paths.has(path),
  });
  if (!isDeepStrictEqual(now.ana, wanted.ana)) {
    steps.push({
      what: `set the ANA states of ${nqn}`,
      phase: 'change',
      run: setAnaRules(nqn, wanted.ana, now.ana),
      undo: setAnaRules(nqn, now.ana, wanted.ana),
    });
  }
  const rules = ({ allowAnyHost = false, hosts }: SubsystemConfig) => ({ allowAnyHost, hosts });
  if (isDeepStrictEqual(rules(now), rules(wanted))) return steps;
  return [
    ...steps,
    {
      what: `set the hosts of ${nqn}`,
      phase: 'change',
      run: (target) => target.setHosts(nqn, rules(wanted)),
      undo: (target) => target.setHosts(nqn, rules(now)),
    },
  ];
}

const pathsOf = (config: TargetConfig): Set<string> =>
  new Set(
    config.subsystems.flatMap(({ namespaces }) => namespaces.flatMap(({ path }) => path ?? [])),
  );

/** What has to be done, in order. Throws CONFIG_RESTART when it cannot be done while the target runs. */
export function difference(before: TargetConfig, after: TargetConfig): Step[] {
  const [now, wanted] = [absolutePaths(before), absolutePaths(after)];
  const fixed = changedKeys(now, wanted, LIVE_KEYS.target);
  if (fixed.length > 0) {
    throw new NvmeofError(
      'CONFIG_RESTART',
      `${fixed.join(', ')}: cannot change while the target runs; restart it, or leave ${fixed.length === 1 ? 'it' : 'them'} as it was`,
      { object: fixed[0] },
    );
  }
  const wantedPaths = pathsOf(wanted);
  const canonical = (port: PortConfig): PortConfig => ({
    ...port,
    address: formatAddress(parseAddress(port.address)),
  });
  const steps = [
    ...compare<SubsystemConfig>({
      now: now.subsystems,
      wanted: wanted.subsystems,
      same: (a, b) => a.nqn === b.nqn,
      add: addSubsystem,
      change: (a, b) => changeSubsystem(a, b, wantedPaths),
      inTheWay: ({ namespaces }) =>
        namespaces.some(({ path }) => path !== undefined && wantedPaths.has(path)),
    }),
    ...compare<PortConfig>({
      now: now.ports,
      wanted: wanted.ports,
      same: portsOverlap,
      add: addPort,
      change: (a, b) => (isDeepStrictEqual(canonical(a), canonical(b)) ? [] : undefined),
    }),
    ...compare<ReferralConfig>({
      now: now.referrals,
      wanted: wanted.referrals,
      same: sameReferral,
      add: addReferral,
      change: (a, b) => (a.nqn === b.nqn ? [] : undefined),
    }),
  ];
  return PHASES.flatMap((phase) => steps.filter((step) => step.phase === phase));
}

/** Runs the steps; returns what was done. When one fails nothing has changed, or the error (CONFIG_RELOAD) says what has. */
export async function applySteps(target: Target, steps: readonly Step[]): Promise<string[]> {
  const done: Step[] = [];
  for (const step of steps) {
    try {
      await step.run(target);
      done.push(step);
    } catch (error) {
      const stuck: string[] = [];
      for (const one of done.toReversed()) {
        await one.undo(target).catch((problem: unknown) => {
          stuck.push(`${one.what} could not be undone: ${messageOf(problem)}`);
        });
      }
      const rest = stuck.length === 0 ? 'nothing has changed' : stuck.join('; ');
      throw new NvmeofError('CONFIG_RELOAD', `${step.what}: ${messageOf(error)}; ${rest}`, {
        object: step.what,
        cause: error,
      });
    }
  }
  return done.map(({ what }) => what);
}
