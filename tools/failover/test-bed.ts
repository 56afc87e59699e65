/**
 * What a scenario runs on: targets in processes of their own that share a file, on free loopback addresses, and a host with
 * a path to each.
 */
import { randomInt } from 'node:crypto';
import { mkdtemp, rm, truncate, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { MultipathOptions, PathPolicy, PathSpec } from '../../initiator/index.ts';
import type { FaultyTarget } from './faulty-target.ts';
import type { FailoverHost } from './host.ts';
import { ManagedTarget } from './managed-target.ts';
import { NetworkNamespace } from './network-namespace.ts';
import type { Scenario } from './scenario.ts';
import { SeveralPathsHost } from './several-paths.ts';
import type { LoadOptions } from './verified-load.ts';

export interface TestBed {
  readonly host: FailoverHost;
  readonly targets: readonly FaultyTarget[];
  readonly nsid: number;
  readonly reconnectDelayMs: number;
}

/** Of the host, as users of `nvmeof attach` have them. */
export interface HostSettings {
  readonly reconnectDelayMs: number;
  readonly keepAliveMs: number;
  readonly policy: PathPolicy;
}

export function hostOptions(
  nqn: string,
  paths: readonly PathSpec[],
  { reconnectDelayMs, keepAliveMs, policy }: HostSettings,
): MultipathOptions {
  return { nqn, paths, reconnectDelayMs, keepAliveMs, policy };
}

const NQN = 'nqn.2026-11.io.nvmeof:failover-test';
const UUID = '0c9d1f5e-6f3b-4b3e-9b0a-6f61696c6f76';
const PORT = 4420;
const NSID = 1;
const BLOCK_BYTES = 4096;
const ADDRESS_DRAWS = 8;
const CNTLIDS_EACH = 1000;

/** 127.0.x.y is left to people. */
const drawAddress = (): string =>
  `127.${randomInt(1, 255)}.${randomInt(0, 256)}.${randomInt(1, 255)}`;

/** The nth of the targets that share the disk. */
async function startTarget(
  folder: string,
  index: number,
  load: LoadOptions,
  network: NetworkNamespace | undefined,
): Promise<ManagedTarget> {
  const config = join(folder, `target-${index}.json`);
  const blockSize = load.requestBytes % BLOCK_BYTES === 0 ? BLOCK_BYTES : 512;
  const first = 1 + index * CNTLIDS_EACH;
  for (let draw = 1; ; draw++) {
    const address = network?.address ?? drawAddress();
    const namespace = { path: join(folder, 'disk'), shared: true, uuid: UUID, blockSize };
    const subsystem = {
      ...{ nqn: NQN, cntlids: { first, last: first + CNTLIDS_EACH - 1 } },
      namespaces: [namespace],
    };
    const ports = [{ address, port: PORT }];
    await writeFile(config, JSON.stringify({ provider: 'soft', ports, subsystems: [subsystem] }));
    try {
      const where = { address, port: PORT, nqn: NQN };
      return await ManagedTarget.start({ ...where, config, seed: load.seed + index, network });
    } catch (error) {
      // Only an address that somebody has already is worth another draw.
      if (draw === ADDRESS_DRAWS || !/in use|EADDRINUSE/i.test(String(error))) throw error;
    }
  }
}

async function makeDisk(folder: string, load: LoadOptions): Promise<void> {
  const path = join(folder, 'disk');
  await writeFile(path, '');
  await truncate(path, Math.ceil(load.areaBytes / BLOCK_BYTES) * BLOCK_BYTES);
}

export interface OwnBedOptions {
  readonly scenario: Scenario;
  readonly load: LoadOptions;
  readonly settings: HostSettings;
  /** At least; more where the scenario names more. */
  readonly targets: number;
  /** Each target in a network namespace of its own. */
  readonly networkNamespaces: boolean;
}

/** Ends all of it, whatever becomes of `run`. */
export async function withTestBed<T>(
  { scenario, load, settings, targets: least, networkNamespaces }: OwnBedOptions,
  run: (bed: TestBed) => Promise<T>,
): Promise<T> {
  const wanted = Math.max(least, 1 + Math.max(...scenario.faults.map((each) => each.target)));
  const folder = await mkdtemp(join(tmpdir(), 'nvmeof-failover-'));
  const targets: ManagedTarget[] = [];
  const networks: NetworkNamespace[] = [];
  try {
    await makeDisk(folder, load);
    for (let index = 0; index < wanted; index++) {
      if (networkNamespaces) networks.push(await NetworkNamespace.create());
      targets.push(await startTarget(folder, index, load, networks[index]));
    }
    const paths = targets.map(({ options: { address, port } }) => ({ address, port }));
    const host = await SeveralPathsHost.connect(hostOptions(NQN, paths, settings), NSID);
    try {
      return await run({ host, targets, nsid: NSID, reconnectDelayMs: settings.reconnectDelayMs });
    } finally {
      await host.close();
    }
  } finally {
    await Promise.all(targets.map((target) => target.close()));
    for (const network of networks) await network.remove();
    await rm(folder, { recursive: true, force: true });
  }
}
