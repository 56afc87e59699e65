/**
 * Writes a configuration file so that a crash or a power cut at any moment leaves the old file or the new one, whole.
 */
import { open, realpath, rename, stat, unlink } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import { formatConfig, parseConfig } from './config.ts';
import type { TargetConfig } from './config.ts';

/** Of a file that is new. */
const MODE = 0o600;

/** Paths that mean the same in every working folder. Identities do not depend on how a path is written. */
export function absolutePaths(config: TargetConfig): TargetConfig {
  const { pcap, control } = config;
  return {
    ...config,
    ...(pcap === undefined ? {} : { pcap: resolve(pcap) }),
    ...(typeof control === 'string' ? { control: resolve(control) } : {}),
    subsystems: config.subsystems.map((subsystem) => ({
      ...subsystem,
      namespaces: subsystem.namespaces.map((namespace) =>
        namespace.path === undefined ? namespace : { ...namespace, path: resolve(namespace.path) },
      ),
    })),
  };
}

async function syncFolder(path: string): Promise<void> {
  const folder = await open(dirname(path), 'r');
  try {
    await folder.sync();
  } finally {
    await folder.close();
  }
}

/** The file itself where the path is a link, and the mode it has. */
async function existing(path: string): Promise<{ readonly path: string; readonly mode: number }> {
  try {
    const real = await realpath(path);
    return { path: real, mode: (await stat(real)).mode & 0o777 };
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { path, mode: MODE };
    throw error;
  }
}

async function replace(path: string, mode: number, text: string): Promise<void> {
  const temporary = `${path}.${process.pid}.tmp`;
  try {
    const file = await open(temporary, 'w', mode);
    try {
      await file.chmod(mode);
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(temporary, path);
  } catch (error) {
    await unlink(temporary).catch(() => undefined);
    throw error;
  }
  await syncFolder(path);
}

/**
 * Replaces the file in one step: a reader sees the old one or the new one. Resolves when the new one is on stable storage. Throws
 * CONFIG_INVALID when the file could not be read back (a target without ports), and CONFIG_UNWRITABLE.
 */
export async function saveConfig(path: string, config: TargetConfig): Promise<void> {
  const text = formatConfig(absolutePaths(config));
  parseConfig(JSON.parse(text), path);
  try {
    const file = await existing(path);
    await replace(file.path, file.mode, text);
  } catch (error) {
    throw new NvmeofError('CONFIG_UNWRITABLE', `${path}: ${messageOf(error)}`, {
      object: path,
      cause: error,
    });
  }
}
