/** What a namespace of a scenario is stored on: a file, or a block device (a loop device over such a file). */
import { execFileSync } from 'node:child_process';
import { sparseFile } from './our-target.ts';
import type { Lab } from './scenario.ts';

export const BACKINGS = ['file', 'block device'] as const;
export type BackingKind = (typeof BACKINGS)[number];

export interface Backing {
  /** What the target is given. */
  readonly path: string;
  /** Where the bytes are in the end, once they are flushed. */
  readonly file: string;
}

/** Loop devices are the machine's own: given back when the scenario is over. */
export function makeBacking(lab: Lab, kind: BackingKind, name: string, size: number): Backing {
  const file = sparseFile(lab, name, size);
  if (kind === 'file') return { path: file, file };
  const path = execFileSync('losetup', ['--find', '--show', file], { encoding: 'utf8' }).trim();
  lab.defer(() => {
    execFileSync('losetup', ['--detach', path]);
    return undefined;
  });
  return { path, file };
}

/** Ending of a scenario's title: the one on a file has the plain title. */
export function titleOn(kind: BackingKind): string {
  return kind === 'file' ? '' : `, on a ${kind}`;
}
