/** The product inside a guest, on the verbs provider there: its target as a process of the guest, its other sub-commands. */
import { execFileSync } from 'node:child_process';
import { expect } from 'chai';
import type { Guest } from './guest.ts';
import { NQN } from './our-target.ts';
import type { Lab } from './scenario.ts';

/** Node starts slowly in emulation. */
const START_SECONDS = 120;
const SIZE = '64MiB';

const CLI = '/run/repository/tools/cli/bin.js';

let compiled = false;

/** Compiled code: reading the TypeScript sources takes a guest half a minute each time. */
function compile(): void {
  if (compiled) return;
  execFileSync('npx', ['--no-install', 'tsc', '-p', 'tsconfig.build.json'], { stdio: 'inherit' });
  compiled = true;
}

const endpoint = (address: string): string => (address.includes(':') ? `[${address}]` : address);

/** Runs `nvmeof …` in a guest, on verbs; returns what it printed. */
export async function nvmeofIn(guest: Guest, args: string, seconds = 120): Promise<string> {
  compile();
  return guest.run(`node ${CLI} ${args} --provider verbs`, seconds);
}

export interface GuestTarget {
  readonly address: string;
  readonly nqn: string;
  /** In order; fails when it does not end well. */
  stop(): Promise<void>;
  log(): Promise<string>;
}

let started = 0;

export async function startGuestTarget(
  lab: Lab,
  guest: Guest,
  address: string,
  options: { readonly exported?: string; readonly args?: string; readonly provider?: string } = {},
): Promise<GuestTarget> {
  compile();
  const { exported = `memory:${SIZE}`, args = '', provider = 'auto' } = options;
  const log = `/run/share/our-target${(started += 1)}.log`;
  const pid = (
    await guest.run(`nohup node ${CLI} target --nqn ${NQN} --listen '${endpoint(address)}' \\
      --export ${exported} --provider ${provider} ${args} >${log} 2>&1 & echo $!`)
  ).trim();
  const read = (): Promise<string> => guest.run(`cat ${log}`);
  let stopped = false;
  lab.defer(() => (stopped || !guest.alive ? undefined : guest.run(`kill -KILL ${pid} || true`)));
  await guest.until(`grep -q 'nvme connect -t rdma' ${log} || ! kill -0 ${pid}`, START_SECONDS);
  expect(await read()).to.include('"provider":"verbs"');
  return {
    address,
    nqn: NQN,
    log: read,
    stop: async () => {
      await guest.run(`kill -INT ${pid}; while kill -0 ${pid} 2>/dev/null; do sleep 0.1; done`);
      stopped = true;
      expect(await read()).to.include('"msg":"stopped"');
    },
  };
}
