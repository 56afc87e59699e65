/** What a scenario runs on: as many targets as it names, on free loopback addresses, and a host that is connected to them. */
import { randomInt } from 'node:crypto';
import type { FailoverHost } from './host.ts';
import { ManagedTarget } from './managed-target.ts';
import type { Scenario } from './scenario.ts';
import { SinglePathHost } from './single-path.ts';
import type { LoadOptions } from './verified-load.ts';

export interface TestBed {
  readonly host: FailoverHost;
  readonly targets: readonly ManagedTarget[];
  readonly nsid: number;
}

/** Of the host that `withTestBed` connects. */
export const HOST_ABILITIES: Pick<FailoverHost, 'survivesLostPaths' | 'followsAna'> = {
  survivesLostPaths: false,
  followsAna: false,
};

const NQN = 'nqn.2026-11.io.nvmeof:failover-test';
const PORT = 4420;
const NSID = 1;
const BLOCK_BYTES = 4096;
const ADDRESS_DRAWS = 8;

/** 127.0.x.y is left to people. */
const drawAddress = (): string =>
  `127.${randomInt(1, 255)}.${randomInt(0, 256)}.${randomInt(1, 255)}`;

async function startTarget(load: LoadOptions): Promise<ManagedTarget> {
  const blockBytes = load.requestBytes % BLOCK_BYTES === 0 ? BLOCK_BYTES : 512;
  const exports = [
    `memory:${Math.ceil(load.areaBytes / BLOCK_BYTES) * BLOCK_BYTES},bs=${blockBytes}`,
  ];
  for (let draw = 1; ; draw++) {
    const address = drawAddress();
    try {
      return await ManagedTarget.start({ address, port: PORT, nqn: NQN, exports, seed: load.seed });
    } catch (error) {
      // Only an address that somebody has already is worth another draw.
      if (draw === ADDRESS_DRAWS || !/in use|EADDRINUSE/i.test(String(error))) throw error;
    }
  }
}

/** Ends all of it, whatever becomes of `run`. */
export async function withTestBed<T>(
  { scenario, load }: { readonly scenario: Scenario; readonly load: LoadOptions },
  run: (bed: TestBed) => Promise<T>,
): Promise<T> {
  const wanted = 1 + Math.max(...scenario.faults.map(({ target }) => target));
  if (wanted > 1) {
    throw new RangeError(`the scenario names ${wanted} targets, and this host has one path`);
  }
  const target = await startTarget(load);
  try {
    const { address, port, nqn } = target.options;
    const host = await SinglePathHost.connect({ address, port, nqn }, NSID);
    try {
      return await run({ host, targets: [target], nsid: NSID });
    } finally {
      await host.close();
    }
  } finally {
    await target.close();
  }
}
