/**
 * How a scenario is written (README.md): `side` names who talks to whom, `scenario` is one test for each variant of the
 * peer. A scenario gets a Lab: a guest whose link is up, the network, a place for files, and `defer` for what has to be
 * undone. When it fails, consoles, logs of processes and a capture stay in a folder that the message names.
 */
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Process } from '../../support/processes.ts';
import { allScenarios, keptFolder, kernels, runFolder } from './environment.ts';
import type { Guest, Machine } from './guest.ts';
import { record, type Result } from './results.ts';
import { capture, families, OUTSIDE, type Capture, type Family } from './network.ts';
import { giveUp, killAll, takeGuest, type Driver, type Seat } from './pool.ts';

export interface Variant {
  readonly kernel: string;
  readonly driver: Driver;
  readonly family: Family;
  /** Path MTU. */
  readonly mtu: number;
}

export const DEFAULT: Variant = { kernel: '6.12', driver: 'rxe', family: 'IPv4', mtu: 4096 };
export const SMALL_V6: Variant = { ...DEFAULT, family: 'IPv6', mtu: 1024 };

/** Kernels x families x MTUs, of the kernels that this machine has. */
export function everyVariant(only: Partial<Variant> = {}): Variant[] {
  const pick = <T>(all: readonly T[], one: T | undefined): readonly T[] =>
    one === undefined ? all : [one];
  return pick(
    kernels.map(({ name }) => name),
    only.kernel,
  ).flatMap((kernel) =>
    pick(families, only.family).flatMap((family) =>
      pick([1024, 4096], only.mtu).map((mtu) => ({
        driver: only.driver ?? 'rxe',
        kernel,
        family,
        mtu,
      })),
    ),
  );
}

/** DEFAULT on every kernel. */
export function everyKernel(only: Partial<Variant> = {}): Variant[] {
  return kernels.map(({ name }) => ({ ...DEFAULT, kernel: name, ...only }));
}

export interface ScenarioOptions {
  /** In the core set with these variants (default: none of them). */
  readonly core?: readonly Variant[];
  /** With --all (default: DEFAULT alone). */
  readonly variants?: readonly Variant[];
  /** Time limit of one variant. */
  readonly seconds?: number;
  /** Guests for this scenario alone: 4 processors, more memory. */
  readonly guest?: Machine;
}

export class Lab {
  readonly variant: Variant;
  readonly title: string;
  readonly folder: string;
  /** Of processes outside the guests. */
  readonly address: string;
  readonly seats: Seat[] = [];
  readonly processes: { name: string; process: Process }[] = [];
  readonly #options: ScenarioOptions;
  readonly #deferred: (() => Promise<unknown> | undefined)[] = [];

  constructor(title: string, variant: Variant, options: ScenarioOptions) {
    this.title = title;
    this.variant = variant;
    this.#options = options;
    this.folder = mkdtempSync(join(tmpdir(), 'nvmeof-kernel-files-'));
    this.address = OUTSIDE[variant.family];
  }

  /** A guest with a link as the variant says; role tells several guests of one scenario apart. */
  async takeGuest(
    role = 'peer',
    changes: Partial<Variant> = {},
  ): Promise<{ guest: Guest; address: string }> {
    const { kernel, mtu, driver, family } = { ...this.variant, ...changes };
    const extra = this.#options.guest;
    const seat = await takeGuest(
      kernel,
      extra ? `${role}-${JSON.stringify(extra).replace(/\W+/g, '')}` : role,
      mtu,
      driver,
      extra,
    );
    if (!this.seats.includes(seat)) {
      this.seats.push(seat);
      if (extra?.spinWhenIdle) this.defer(() => giveUp(seat.guest));
    }
    return { guest: seat.guest, address: seat.port.addresses[family] };
  }

  /** Starts `nvmeof …`; stopped, and its output kept on failure, when the scenario is over. */
  nvmeof(name: string, args: readonly string[], env: NodeJS.ProcessEnv = {}): Process {
    const process = new Process(args, env);
    this.processes.push({ name, process });
    this.defer(() => process.stop('SIGKILL'));
    return process;
  }

  /** Undone in reverse order, whatever happens before; a failure in it fails the scenario. */
  defer(undo: () => Promise<unknown> | undefined): void {
    this.#deferred.push(undo);
  }

  async undo(): Promise<void> {
    const errors: unknown[] = [];
    for (let undo = this.#deferred.pop(); undo; undo = this.#deferred.pop()) {
      try {
        await undo();
      } catch (error) {
        errors.push(error);
      }
    }
    if (errors.length > 0) throw errors[0];
  }
}

type Body = (lab: Lab) => Promise<void>;
export type Scenario = (title: string, options: ScenarioOptions, body: Body) => void;

const SECONDS = 120;

export function describeVariant({ kernel, driver, family, mtu }: Variant): string {
  return `Linux ${kernel} ${driver}, ${family}, MTU ${mtu}`;
}

/** A group of scenarios; `name` says who talks to whom: "kernel host → our target on soft". */
export function side(name: string, define: (scenario: Scenario) => void): void {
  describe(name, () => {
    define((title, options, body) => {
      const variants = allScenarios
        ? (options.variants ?? options.core ?? [DEFAULT])
        : (options.core ?? []);
      for (const variant of variants) {
        const seconds = options.seconds ?? SECONDS;
        const test = it(`${title} (${describeVariant(variant)})`, async () => {
          await runScenario(name, title, variant, options, body, seconds);
        });
        // runScenario keeps the limit; mocha's is for what hangs in clearing up.
        test.timeout((seconds + 90) * 1000);
      }
    });
  });
}

async function runScenario(
  sideName: string,
  title: string,
  variant: Variant,
  options: ScenarioOptions,
  body: Body,
  seconds: number,
): Promise<void> {
  const lab = new Lab(title, variant, options);
  const began = Date.now();
  let packets: Capture | undefined;
  let failure: Error | undefined;
  try {
    const { guest } = await lab.takeGuest();
    // What an earlier scenario provoked is no news in this one, and what it wrote is in nobody's way.
    await guest.run('dmesg -C; rm -rf /tmp/*');
    packets = await capture(join(runFolder, 'packets.pcap'));
    await limited(body(lab), seconds);
  } catch (error) {
    failure = error as Error;
  }
  // While the processes still run: their end is no part of the trace.
  await packets?.stop();
  if (failure) failure = keepTraces(lab, failure);
  const release = lab.seats[0]?.guest.release ?? variant.kernel;
  // A guest in an unknown state would fail the scenarios after this one.
  if (failure) for (const { guest } of lab.seats) await giveUp(guest);
  try {
    await lab.undo();
  } catch (error) {
    failure ??= keepTraces(lab, error as Error);
    for (const { guest } of lab.seats) await giveUp(guest);
  }
  rmSync(lab.folder, { recursive: true, force: true });
  const result: Result = {
    ...{ side: sideName, scenario: title, ...variant, release, passed: !failure },
    ...{ seconds: (Date.now() - began) / 1000, date: new Date().toISOString().slice(0, 10) },
  };
  record(result);
  if (failure) throw failure;
}

/** What is still under way when time is up ends with the guests. */
async function limited(work: Promise<void>, seconds: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`not done after ${seconds} s`));
    }, seconds * 1000);
  });
  try {
    await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** Moves what tells about the failure into a folder, and names it in the message. */
function keepTraces(lab: Lab, failure: Error): Error {
  const name = `${lab.title} ${describeVariant(lab.variant)}`.replace(/[^\w.]+/g, '-');
  const folder = join(keptFolder(), name);
  mkdirSync(folder, { recursive: true });
  for (const { guest } of lab.seats) {
    cpSync(guest.consoleFile, join(folder, `${guest.name}-console.log`));
    for (const file of readdirSync(guest.share).filter((name) => name.endsWith('.log')))
      cpSync(join(guest.share, file), join(folder, `${guest.name}-${file}`));
  }
  for (const {
    name: process,
    process: { stdout, stderr },
  } of lab.processes) {
    writeFileSync(join(folder, `${process}.log`), `${stdout}\n${stderr}`);
  }
  for (const file of readdirSync(runFolder)) {
    if (!file.startsWith('packets.pcap')) continue;
    const to = join(folder, file.replace('packets.pcap', 'packets-').replace(/-$/, '') + '.pcap');
    cpSync(join(runFolder, file), to);
  }
  if (existsSync(lab.folder)) {
    for (const file of readdirSync(lab.folder)) {
      if (file.endsWith('.log') || file.endsWith('.pcap'))
        renameSync(join(lab.folder, file), join(folder, file));
    }
  }
  writeFileSync(join(folder, 'failure.txt'), failure.stack ?? failure.message);
  const kept = new Error(`${failure.message}\nkept in ${folder}`);
  const frames = failure.stack?.replace(/^[^]*?\n(?= {4}at )/, '') ?? '';
  kept.stack = `${kept.message}\n${frames}`;
  return kept;
}

after('guests are ended', async function () {
  this.timeout(60_000);
  await killAll();
});
