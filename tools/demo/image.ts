/**
 * What the demo exports: the file or device it was given, or an ext4 image made of real files, namely this project's
 * sources and the Node executable, without root (mkfs.ext4 -d).
 */
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { createReadStream, existsSync } from 'node:fs';
import { copyFile, cp, mkdir, open, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { formatSize } from '../../native/common/size.ts';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const CONTENT = [
  'docs',
  'initiator',
  'native',
  'target',
  'test',
  'tools',
  'package.json',
  'LICENSE',
];
const IMAGE_MIB = 256;
const SEARCH_PATH = `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin`;

/** Superblock magic of ext2, 3 and 4. */
const EXT_MAGIC_OFFSET = 1080;
const EXT_MAGIC = 0xef53;

export interface Image {
  readonly path: string;
  readonly description: string;
  /** e2fsck can judge a copy of it. */
  readonly ext: boolean;
}

/** Runs a program of the file system tools; throws with what it said when it fails. */
export function runTool(program: string, args: readonly string[]): string {
  const { status, stdout, stderr, error } = spawnSync(program, [...args], {
    encoding: 'utf8',
    env: { ...process.env, PATH: SEARCH_PATH, MKE2FS_CONFIG: '/dev/null' },
  });
  if (error) throw new Error(`${program} cannot be run: ${error.message} (package e2fsprogs)`);
  if (status !== 0)
    throw new Error(`${program} exits with ${status ?? 'a signal'}: ${stderr}${stdout}`);
  return stdout;
}

async function hasExtMagic(path: string): Promise<boolean> {
  const file = await open(path, 'r');
  try {
    const bytes = Buffer.alloc(2);
    const { bytesRead } = await file.read(bytes, 0, 2, EXT_MAGIC_OFFSET);
    return bytesRead === 2 && bytes.readUInt16LE() === EXT_MAGIC;
  } finally {
    await file.close();
  }
}

export async function givenImage(path: string): Promise<Image> {
  const found = await stat(path);
  if (!found.isFile() && !found.isBlockDevice()) {
    throw new Error(`${path} is neither a file nor a block device`);
  }
  const what = found.isFile() ? `file, ${formatSize(found.size)}` : 'block device';
  return { path, description: `${path} (${what})`, ext: await hasExtMagic(path) };
}

/** Build output is left out: it is large, and not source. */
function isSource(path: string): boolean {
  return !/\/(build[^/]*|node_modules|dist|\.git)$/.test(path);
}

export async function makeImage(folder: string): Promise<Image> {
  const staging = join(folder, 'files');
  await mkdir(staging);
  for (const name of CONTENT) {
    const from = join(ROOT, name);
    if (existsSync(from)) {
      await cp(from, join(staging, name), { recursive: true, filter: isSource });
    }
  }
  await copyFile(process.execPath, join(staging, 'node'));
  const path = join(folder, 'demo.img');
  runTool('mkfs.ext4', ['-q', '-F', '-d', staging, path, `${IMAGE_MIB}M`]);
  await rm(staging, { recursive: true });
  const description = `ext4 image of this project's files, ${IMAGE_MIB} MiB`;
  return { path, description, ext: true };
}

export async function sha256OfFile(path: string): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, { highWaterMark: 1 << 20 })) {
    hash.update(chunk as Buffer);
  }
  return hash.digest('hex');
}

/** The self-test of the comparison: one bit of the middle byte of the backing is turned. */
export async function flipByte(path: string): Promise<void> {
  const file = await open(path, 'r+');
  try {
    const at = Math.floor((await file.stat()).size / 2);
    const byte = Buffer.alloc(1);
    await file.read(byte, 0, 1, at);
    byte[0] = (byte[0] ?? 0) ^ 1;
    await file.write(byte, 0, 1, at);
    await file.sync();
  } finally {
    await file.close();
  }
}
