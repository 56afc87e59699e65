/**
 * What the doctor sees of a machine: files below a root ('/' in life, a fixture tree in tests). Nothing here throws:
 * what cannot be read is absent, and each check says what that means.
 */
import { existsSync, readFileSync, readdirSync, readlinkSync } from 'node:fs';
import { join } from 'node:path';

export class SystemView {
  readonly root: string;

  constructor(root = '/') {
    this.root = root;
  }

  read(path: string): string | undefined {
    try {
      return readFileSync(join(this.root, path), 'utf8');
    } catch {
      return undefined;
    }
  }

  readNumber(path: string): number | undefined {
    const text = this.read(path)?.trim();
    return text !== undefined && /^\d+$/.test(text) ? Number(text) : undefined;
  }

  list(path: string): string[] {
    try {
      return readdirSync(join(this.root, path)).sort();
    } catch {
      return [];
    }
  }

  link(path: string): string | undefined {
    try {
      return readlinkSync(join(this.root, path));
    } catch {
      return undefined;
    }
  }

  exists(path: string): boolean {
    return existsSync(join(this.root, path));
  }

  hasModule(name: string): boolean {
    const lines = this.read('/proc/modules')?.split('\n') ?? [];
    return lines.some((line) => line.startsWith(`${name} `));
  }
}

export type Level = 'ok' | 'warn' | 'fail';

/** One line of the report. */
export interface Finding {
  readonly subject: string;
  readonly level: Level;
  readonly message: string;
  /** What to type, or to change, when it is not ok. */
  readonly remedy?: string;
}

export function ok(subject: string, message: string): Finding {
  return { subject, level: 'ok', message };
}

export function warn(subject: string, message: string, remedy: string): Finding {
  return { subject, level: 'warn', message, remedy };
}

export function fail(subject: string, message: string, remedy: string): Finding {
  return { subject, level: 'fail', message, remedy };
}
