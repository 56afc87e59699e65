/** What the rows and curves are made of: subjects of ours and of the floor, on the cores of this run. */
import { closeSync, openSync, writeSync } from 'node:fs';
import { randomBytes } from 'node:crypto';
import type { Metric, Subject } from './figures.ts';
import { floor, type FloorShape } from './floor.ts';
import { NAMESPACE_BYTES, ours, type Load, type TargetShape, type Targets } from './ours.ts';
import type { FloorProgram } from './programs.ts';

export interface Goal {
  readonly metric: Metric;
  /** Of ours ÷ reference. */
  readonly atLeast?: number;
  readonly atMost?: number;
}

export interface Row {
  readonly id: string;
  readonly title: string;
  readonly subject: Subject;
  readonly reference: Subject;
  readonly goal: Goal;
  /** Takes long and needs no repetition: in the first round only. */
  readonly once?: boolean;
  /** Makes what the row needs besides; rejects where that cannot be had. Then the row is left out. */
  readonly prepare?: () => Promise<unknown>;
}

/** Points of one curve in a plot. */
export interface Sweep {
  readonly id: string;
  readonly title: string;
  readonly axis: 'depth' | 'block size';
  readonly points: readonly { readonly x: number; readonly subject: Subject }[];
}

export interface Matrix {
  readonly rows: readonly Row[];
  readonly sweeps: readonly Sweep[];
}

/** A file with something in every block, so that reads of it are no reads of holes. */
export function makeFile(path: string): string {
  const handle = openSync(path, 'w');
  for (let written = 0; written < NAMESPACE_BYTES;) {
    written += writeSync(handle, randomBytes(4 << 20));
  }
  closeSync(handle);
  return path;
}

export class Parts {
  readonly targets: Targets;
  readonly floorProgram: FloorProgram;
  /** Core of the target's reactor, core of the host's. */
  readonly targetCore: number;
  readonly hostCore: number;
  /** Of NAMESPACE_BYTES. */
  readonly file: string;
  readonly memory: TargetShape;
  readonly cachedFile: TargetShape;

  constructor(
    targets: Targets,
    floorProgram: FloorProgram,
    [targetCore, hostCore]: [number, number],
    file: string,
  ) {
    this.targets = targets;
    this.floorProgram = floorProgram;
    this.targetCore = targetCore;
    this.hostCore = hostCore;
    this.file = file;
    this.memory = this.exporting(`memory:${NAMESPACE_BYTES},bs=4096`);
    this.cachedFile = this.exporting(`${this.file},bs=4096`);
  }

  exporting(what: string, ...options: readonly string[]): TargetShape {
    return { exports: [what], cores: [this.targetCore], options };
  }

  /** The memory namespace on a target with these options. */
  memoryWith(...options: readonly string[]): TargetShape {
    return { ...this.memory, options };
  }

  ours(name: string, where: TargetShape, load: Omit<Load, 'cores'>): Subject {
    return ours(name, this.targets, where, { cores: [this.hostCore], ...load });
  }

  floor(kind: FloorShape, depth: number, bytes?: number): Subject {
    return floor(this.floorProgram, kind, depth, bytes);
  }
}
