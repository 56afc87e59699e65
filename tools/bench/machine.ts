/** The machine that the figures belong to. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { cpus, release, totalmem, type } from 'node:os';

export interface MachineDescription {
  readonly processor: string;
  readonly processors: number;
  readonly memoryGib: number;
  readonly kernel: string;
  readonly hypervisor: boolean;
  readonly node: string;
  readonly receiveBufferMax: string;
  readonly hugePages: string;
  readonly commit: string;
  readonly date: string;
}

function text(path: string): string {
  try {
    return readFileSync(path, 'utf8').trim();
  } catch {
    return 'unknown';
  }
}

function commit(): string {
  try {
    return execFileSync('git', ['describe', '--always', '--dirty'], { encoding: 'utf8' }).trim();
  } catch {
    return 'unknown';
  }
}

export function describeMachine(now: Date): MachineDescription {
  const [first] = cpus();
  return {
    processor: first?.model.trim() ?? 'unknown',
    processors: cpus().length,
    memoryGib: Math.round(totalmem() / 2 ** 30),
    kernel: `${type()} ${release()}`,
    hypervisor: / hypervisor\b/.test(text('/proc/cpuinfo')),
    node: process.version,
    receiveBufferMax: text('/proc/sys/net/core/rmem_max'),
    hugePages: text('/sys/kernel/mm/transparent_hugepage/enabled'),
    commit: commit(),
    date: now.toISOString(),
  };
}
