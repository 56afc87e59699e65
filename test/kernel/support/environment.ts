/**
 * What run.sh settled: the kernels that are ready, which scenarios to register, where the traces of a failing one go.
 * Importing this outside of run.sh is an error that says so.
 */
import { mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface Kernel {
  /** 6.1 or 6.12 */
  readonly name: string;
  readonly vmlinux: string;
  readonly initrd: string;
}

function listKernels(): readonly Kernel[] {
  const listed = process.env['NVMEOF_KERNELS'];
  if (!listed) throw new Error('these tests are started with npm run test:kernel');
  return listed.split('\n').map((line) => {
    const [name, vmlinux, initrd] = line.split(' ');
    if (!name || !vmlinux || !initrd) throw new Error(`no kernel in ${line}`);
    return { name, vmlinux, initrd };
  });
}

export const kernels = listKernels();
export const allScenarios = process.env['NVMEOF_KERNEL_SET'] === 'all';
export const writeTable = process.env['NVMEOF_KERNEL_TABLE'] === '1';

let kept: string | undefined;

/** The folder for the traces of failing scenarios, made when the first one fails. */
export function keptFolder(): string {
  kept ??=
    process.env['NVMEOF_KERNEL_KEEP'] ?? mkdtempSync(join(tmpdir(), 'nvmeof-kernel-failed-'));
  mkdirSync(kept, { recursive: true });
  return kept;
}

/** Everything of the run that goes with it: sockets, consoles, captures. */
export const runFolder = mkdtempSync(join(tmpdir(), 'nvmeof-kernel-'));
