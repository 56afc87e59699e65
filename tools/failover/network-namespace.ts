/**
 * A network namespace for one target, joined to ours by a pair of veth interfaces, so that packets meet faults in the kernel's
 * own traffic control (tc-netem(8)) and everything on the way is real. Needs root. What a run leaves behind that was killed is
 * removed by the next one.
 */
import { execFile } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { existsSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { z } from 'zod';
import type { Counters } from '../../native/common/counters.ts';
import { NvmeofError, messageOf } from '../../native/common/errors.ts';
import type { FaultRule } from '../../target/index.ts';
import type { End } from './faulty-target.ts';
import type { FaultKind } from './scenario.ts';

const NAME = /^nvmeof-ft-(\d+)-\d+$/;
/** For a path MTU of 4096. */
const MTU = 9000;
const ADDRESS_DRAWS = 32;

/** By netem alone. A black hole is a queue without room, which every kernel has. */
const BY_NETEM: ReadonlySet<FaultKind> = new Set(['loss', 'duplicate', 'reorder', 'delay']);

function run(command: string, ...args: readonly string[]): Promise<string> {
  return new Promise((resolve, reject) => {
    execFile(command, args, (error, stdout, stderr) => {
      if (!error) {
        resolve(stdout);
        return;
      }
      const said = stderr.trim() || error.message;
      const text = `${[command, ...args].join(' ')}: ${said}; --network netns needs root, and iproute2 (ip, tc)`;
      reject(new NvmeofError('NETWORK_NAMESPACE', text, { object: command, cause: error }));
    });
  });
}

const percent = (probability: number): string => `${probability * 100}%`;

/** What `tc qdisc replace … root` is told. Delay and jitter as FaultRule has them: from `delayMs` up to `jitterMs` more. */
export function qdiscOf(rule: FaultRule): string[] {
  const { drop = 0, duplicate = 0, reorder = 0, reorderMs = 1, delayMs = 0, jitterMs = 0 } = rule;
  if (drop === 1) return ['bfifo', 'limit', '1'];
  const words = ['netem'];
  if (reorder > 0) words.push('delay', `${reorderMs}ms`, 'reorder', percent(1 - reorder));
  else if (delayMs > 0) words.push('delay', `${delayMs + jitterMs / 2}ms`, `${jitterMs / 2}ms`);
  if (drop > 0) words.push('loss', percent(drop));
  if (duplicate > 0) words.push('duplicate', percent(duplicate));
  return words;
}

const statistics = z.array(z.object({ kind: z.string(), drops: z.number(), packets: z.number() }));

/** One end of the pair: what leaves there meets its rules, the last one that was given. */
class Side {
  readonly #interface: string;
  readonly #inside: readonly string[];
  readonly #rules: FaultRule[] = [];

  constructor(name: string, inside: readonly string[]) {
    this.#interface = name;
    this.#inside = inside;
  }

  async add(rule: FaultRule): Promise<End> {
    this.#rules.push(rule);
    await this.#apply();
    return async () => {
      this.#rules.splice(this.#rules.indexOf(rule), 1);
      await this.#apply();
    };
  }

  /** Names as those of a device that is told of rules; netem does not count by what it did. */
  async counters(way: 'in' | 'out'): Promise<Counters> {
    const text = await run(
      'tc',
      ...this.#inside,
      '-s',
      '-j',
      'qdisc',
      'show',
      'dev',
      this.#interface,
    );
    const queues = statistics.parse(JSON.parse(text));
    const dropped = queues.reduce((sum, { drops }) => sum + drops, 0);
    const met = queues
      .filter(({ kind }) => kind === 'netem')
      .reduce((sum, { packets }) => sum + packets, 0);
    const effects = { dropped, duplicated: met, reordered: met, delayed: met };
    return Object.fromEntries(
      Object.entries(effects).map(([effect, count]) => [`soft.fault.${way}_${effect}`, count]),
    );
  }

  async #apply(): Promise<void> {
    const rule = this.#rules.at(-1);
    const [verb, words] = rule ? ['replace', qdiscOf(rule)] : ['del', []];
    await run('tc', ...this.#inside, 'qdisc', verb, 'dev', this.#interface, 'root', ...words);
  }
}

/** A /30 of the addresses for benchmarks (RFC 2544) that no interface of ours is in. */
function freeAddresses(): { ours: string; theirs: string } {
  const taken = Object.values(networkInterfaces()).flatMap((list) => list ?? []);
  for (let draw = 0; draw < ADDRESS_DRAWS; draw++) {
    const last = 4 * randomInt(0, 64);
    const net = `198.${randomInt(18, 20)}.${randomInt(0, 256)}`;
    const [ours, theirs] = [`${net}.${last + 1}`, `${net}.${last + 2}`];
    if (!taken.some(({ address }) => address === ours || address === theirs)) {
      return { ours, theirs };
    }
  }
  throw new NvmeofError('NETWORK_NAMESPACE', 'no free addresses in 198.18.0.0/15');
}

async function removeLeftovers(): Promise<void> {
  const list = (await run('ip', 'netns', 'list'))
    .split('\n')
    .map((line) => line.split(' ')[0] ?? '');
  for (const name of list) {
    const pid = NAME.exec(name)?.[1];
    if (pid !== undefined && !existsSync(`/proc/${pid}`)) await run('ip', 'netns', 'del', name);
  }
}

let count = 0;

export class NetworkNamespace {
  readonly name: string;
  /** Of the target. */
  readonly address: string;
  readonly #interface: string;
  readonly #sides: { readonly in: Side; readonly out: Side };

  private constructor(name: string, address: string, outside: string, inside: string) {
    this.name = name;
    this.address = address;
    this.#interface = outside;
    // In directions as the target sees them: what leaves our end comes in there.
    this.#sides = { in: new Side(outside, []), out: new Side(inside, ['-n', name]) };
  }

  static async create(): Promise<NetworkNamespace> {
    const index = count++;
    const name = `nvmeof-ft-${process.pid}-${index}`;
    const [outside, inside] = [`nvf${process.pid}h${index}`, `nvf${process.pid}t${index}`];
    const { ours, theirs } = freeAddresses();
    await run('ip', 'netns', 'add', name);
    try {
      const pair = ['type', 'veth', 'peer', 'name', inside, 'mtu', String(MTU), 'netns', name];
      await run('ip', 'link', 'add', outside, 'mtu', String(MTU), ...pair);
      await run('ip', 'addr', 'add', `${ours}/30`, 'dev', outside);
      await run('ip', 'link', 'set', outside, 'up');
      await run('ip', '-n', name, 'addr', 'add', `${theirs}/30`, 'dev', inside);
      for (const each of ['lo', inside]) await run('ip', '-n', name, 'link', 'set', each, 'up');
    } catch (error) {
      await run('ip', 'netns', 'del', name);
      throw error;
    }
    return new NetworkNamespace(name, theirs, outside, inside);
  }

  /** What a command line begins with to run there. */
  get prefix(): readonly string[] {
    return ['ip', 'netns', 'exec', this.name];
  }

  async packetFault({ direction = 'both', ...rule }: FaultRule): Promise<End> {
    const sides = (['in', 'out'] as const).filter(
      (way) => direction === 'both' || direction === way,
    );
    const ends: End[] = [];
    for (const way of sides) ends.push(await this.#sides[way].add(rule));
    return async () => {
      for (const end of ends) await end();
    };
  }

  async faultCounters(): Promise<Counters> {
    const { in: incoming, out: outgoing } = this.#sides;
    return { ...(await incoming.counters('in')), ...(await outgoing.counters('out')) };
  }

  /** The pair goes with one of its ends; the namespace when its last process has ended. */
  async remove(): Promise<void> {
    await run('ip', 'link', 'del', this.#interface);
    await run('ip', 'netns', 'del', this.name);
  }
}

/** Whether there can be any, and what cannot be done in them: why a fault of a kind cannot be made to happen. */
export async function tryNetworkNamespaces(): Promise<(kind: FaultKind) => string | undefined> {
  await removeLeftovers();
  const trial = await NetworkNamespace.create();
  try {
    await (
      await trial.packetFault({ delayMs: 1 })
    )();
    return () => undefined;
  } catch (error) {
    const why = `this kernel has no netem (sch_netem) for it: ${messageOf(error)}`;
    return (kind) => (BY_NETEM.has(kind) ? why : undefined);
  } finally {
    await trial.remove();
  }
}
