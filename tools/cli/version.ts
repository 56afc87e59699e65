/** The version of this package. */
import { readFileSync } from 'node:fs';

/** package.json is one folder up from the sources' root and from dist/. */
export function version(): string {
  for (const path of ['../../package.json', '../../../package.json']) {
    try {
      const text = readFileSync(new URL(path, import.meta.url), 'utf8');
      return (JSON.parse(text) as { version: string }).version;
    } catch {
      continue;
    }
  }
  return 'unknown';
}
