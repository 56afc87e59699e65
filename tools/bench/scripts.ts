/**
 * Loads of the library, each a script of this folder that runs as a process of its own and prints its figures. Compiled, as
 * the library is used: what tsx adds to the sources costs nearly half of the reads that JavaScript can await.
 */
import process from 'node:process';
import { fileURLToPath } from 'node:url';
import { z } from 'zod';
import { median, type Figures, type Subject } from './figures.ts';
import { SILENCE_MS } from './load-host.ts';
import type { Parts } from './parts.ts';
import { run, SLACK_SECONDS, type RoundTripProgram } from './programs.ts';

const output = z.object({
  iops: z.number(),
  bandwidth: z.number(),
  p50: z.number().optional(),
  p99: z.number().optional(),
  hostCpu: z.number().optional(),
  targetCpu: z.number().optional(),
  retransmits: z.number().optional(),
  cpuShare: z.number().optional(),
  memoryPerQueue: z.number().optional(),
});

interface Script {
  readonly name: string;
  readonly file: string;
  readonly number: number;
  /** Of what a measurement takes; default 1. */
  readonly times?: number;
  readonly more?: readonly (string | number)[];
}

/** A run of the load generator holds a thread of libuv's pool, which has four. */
const env = { ...process.env, UV_THREADPOOL_SIZE: '16' };

/** Started as SCRIPT ADDRESS NQN NUMBER SECONDS CORE PID-OF-TARGET MORE. */
function script(parts: Parts, { name, file, number, times = 1, more = [] }: Script): Subject {
  const path = fileURLToPath(new URL(`../../dist/tools/bench/${file}.js`, import.meta.url));
  return {
    name,
    async measure(each): Promise<Figures> {
      const seconds = each * times;
      const { address, nqn, process: target } = await parts.targets.get(parts.memory);
      const args = [address, nqn, number, seconds, parts.hostCore, target.pid, ...more].map(String);
      const text = await run(process.execPath, [path, ...args], seconds + SLACK_SECONDS, { env });
      const { iops, bandwidth, ...rest } = output.parse(JSON.parse(text));
      const given = Object.entries(rest).filter(([, value]) => value !== undefined);
      return { iops, bandwidth, ...Object.fromEntries(given) };
    },
  };
}

/** `depth` reads awaited at a time, on one JavaScript thread. */
export function javascript(parts: Parts, depth: number): Subject {
  return script(parts, { name: 'JavaScript', file: 'javascript-load', number: depth });
}

/** A host at depth 1, alone or while others ask for all they can get. */
export function slowAmongGreedy(parts: Parts, greedy: number): Subject {
  const name = greedy === 0 ? 'alone' : `among ${greedy} greedy`;
  return script(parts, { name, file: 'fairness-load', number: greedy });
}

/** A minute where others take two seconds. */
const IDLE_TIMES = 30;

/** `queues` that are connected and silent. */
export function idleQueues(parts: Parts, queues: number, times = IDLE_TIMES): Subject {
  return script(parts, { name: 'idle', file: 'idle-load', number: queues, times });
}

/** `active` queues at work among others that are only connected. */
export function manyQueues(parts: Parts, active: number, all: number, depth: number): Subject {
  const [name, number] = [`${all} connected`, all - active];
  return script(parts, { name, file: 'many-queues', number, more: [active, depth] });
}

/**
 * Two threads that wait for each other's datagrams, after the same silence as ours: a processor that has slept that long
 * takes far longer to wake than one that has just gone to sleep, and a virtual one longer still.
 */
export function blockingRoundTrip(program: RoundTripProgram): Subject {
  return {
    name: `UDP, both sides blocking, after ${SILENCE_MS} ms`,
    async measure(): Promise<Figures> {
      return { iops: NaN, bandwidth: NaN, p50: median(await program.microseconds(SILENCE_MS)) };
    },
  };
}
