/**
 * A target with two ports and three namespaces in two ANA groups, and the ANA log as a host reads it.
 */
import { expect } from 'chai';
import { decodeStatus } from '../../../native/wire/status.ts';
import { NvmeofError } from '../../../target/index.ts';
import type { SubsystemOptions } from '../../../target/index.ts';
import { failureOf } from '../../support/in-process.ts';
import { NQN, Rig } from './support.ts';
import type { HostQueue } from './support.ts';

export const A = '127.0.0.1:4420';
export const B = '127.0.0.1:4421';

const namespaces = [
  { nsid: 1, memory: '1M' },
  { nsid: 2, memory: '1M', anaGroup: 7 },
  { nsid: 3, memory: '1M' },
] as const;

export function start(subsystem: Partial<SubsystemOptions> = {}): Promise<Rig> {
  return Rig.start({
    ports: [
      { address: '127.0.0.1', port: 4420 },
      { address: '127.0.0.1', port: 4421 },
    ],
    subsystems: [{ nqn: NQN, namespaces: [...namespaces], ...subsystem }],
  });
}

/** With a host at each port. */
export async function startWithHosts(): Promise<{ rig: Rig; a: HostQueue; b: HostQueue }> {
  const rig = await start();
  return { rig, a: await rig.host(), b: await rig.host({}, {}, { port: 4421 }) };
}

interface Group {
  readonly group: number;
  readonly changes: bigint;
  readonly state: number;
  readonly nsids: number[];
}

/** By the offsets of the specification, not by the product's codec. */
export function decode(bytes: Uint8Array): { readonly changes: bigint; readonly groups: Group[] } {
  const page = Buffer.from(bytes);
  const groups: Group[] = [];
  let at = 16;
  for (let left = page.readUInt16LE(8); left > 0; left--) {
    const count = page.readUInt32LE(at + 4);
    groups.push({
      group: page.readUInt32LE(at),
      changes: page.readBigUInt64LE(at + 8),
      state: page[at + 16] ?? 0,
      nsids: Array.from({ length: count }, (_, index) => page.readUInt32LE(at + 32 + 4 * index)),
    });
    at += 32 + 4 * count;
  }
  return { changes: page.readBigUInt64LE(0), groups };
}

export const readLog = async (host: HostQueue, lsp = 0) =>
  decode((await host.log(0x0c, 4096, { lsp })).data);

export const statesAt = async (host: HostQueue): Promise<Record<number, number>> =>
  Object.fromEntries((await readLog(host)).groups.map(({ group, state }) => [group, state]));

export async function errorOf(promise: Promise<unknown>): Promise<NvmeofError> {
  const error = await failureOf(promise);
  expect(error).to.be.instanceOf(NvmeofError);
  return error as NvmeofError;
}

/** Calls of the door: port number, group, name of the status. */
export const access = (rig: Rig): string[] =>
  rig.door.callsOf('setAccess').map(({ args }) => {
    const [, port, group, status] = args as [number, number, number, number];
    const { name, dnr } = decodeStatus(status);
    return `${port} ${group} ${String(name)}${dnr ? ' dnr' : ''}`;
  });
