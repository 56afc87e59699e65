/** The only file that loads the addon. */
import { createRequire } from 'node:module';
import { existsSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Door } from './index.ts';

function packageRoot(): string {
  let folder = dirname(fileURLToPath(import.meta.url));
  while (!existsSync(join(folder, 'package.json'))) {
    const parent = dirname(folder);
    if (parent === folder) throw new Error('nvmeof: no package.json above ' + import.meta.url);
    folder = parent;
  }
  return folder;
}

/** Where the build leaves the addon. */
export function doorPath(): string {
  return join(packageRoot(), 'native', 'build', 'Release', 'nvmeof.node');
}

let loaded: Door | undefined;

/** The addon, loaded at first use. */
export function loadDoor(): Door {
  if (loaded) return loaded;
  const path = doorPath();
  if (!existsSync(path)) {
    throw new Error(
      `nvmeof: the native part is not built (${path} is missing); run: npm run setup`,
    );
  }
  loaded = createRequire(import.meta.url)(path) as Door;
  return loaded;
}
