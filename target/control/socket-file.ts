/**
 * The place of a control socket in the file system: mode 0600, one owner. A socket that nobody listens on any more is taken over; one
 * that somebody listens on, or a file of another kind, never.
 *
 * The server listens under a name of its own and is then linked to the path, which fails where something is: so of two that start at
 * once one wins, and closing the server removes no path but its own.
 */
import { once } from 'node:events';
import { linkSync, lstatSync, renameSync, unlinkSync } from 'node:fs';
import type { Server } from 'node:net';
import { connect } from 'node:net';
import { NvmeofError, messageOf } from '../../native/common/errors.ts';

/** sun_path of Linux, without its NUL. */
const PATH_BYTES_MAX = 107;
/** What the server is called until it is linked. */
const suffix = (): string => `.${process.pid}`;

function codeOf(error: unknown): string {
  return String((error as NodeJS.ErrnoException).code);
}

function unlinkIfThere(path: string): void {
  try {
    unlinkSync(path);
  } catch (error) {
    if (codeOf(error) !== 'ENOENT') throw error;
  }
}

/** Whether somebody takes connections there. */
async function isLive(path: string): Promise<boolean> {
  const socket = connect(path);
  try {
    await once(socket, 'connect');
    return true;
  } catch (error) {
    // Everything else says nothing about it: its queue is full (EAGAIN), or it is another user's (EACCES).
    return !['ECONNREFUSED', 'ENOENT'].includes(codeOf(error));
  } finally {
    socket.destroy();
  }
}

function inUse(path: string): NvmeofError {
  return new NvmeofError(
    'CONTROL_IN_USE',
    `${path}: another target has its control socket there; stop it, or give --control PATH (or --no-control)`,
    { object: path },
  );
}

/** Moves what nobody listens on out of the way; throws CONTROL_IN_USE when somebody does. */
async function clear(path: string): Promise<void> {
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) {
    throw new NvmeofError(
      'CONTROL_NO_SOCKET',
      `${path}: a file that is no socket is there; choose another path for the control socket`,
      { object: path },
    );
  }
  if (await isLive(path)) throw inUse(path);
  // Between the look and the move another target may have come: then it gets its place back.
  const aside = `${path}${suffix()}.old`;
  try {
    renameSync(path, aside);
  } catch (error) {
    if (codeOf(error) === 'ENOENT') return;
    throw error;
  }
  try {
    if (await isLive(aside)) {
      linkSync(aside, path);
      throw inUse(path);
    }
  } finally {
    unlinkIfThere(aside);
  }
}

/** Binds at once, so that the mode is right from the first moment. */
async function listenAt(server: Server, path: string): Promise<void> {
  const before = process.umask(0o177);
  try {
    server.listen(path);
  } finally {
    process.umask(before);
  }
  await once(server, 'listening');
}

export class SocketFile {
  readonly path: string;
  readonly #inode: bigint;

  private constructor(path: string) {
    this.path = path;
    this.#inode = lstatSync(path, { bigint: true }).ino;
  }

  /** Makes `server` listen at `path`. Throws CONTROL_IN_USE, CONTROL_NO_SOCKET, CONTROL_PATH. */
  static async open(server: Server, path: string): Promise<SocketFile> {
    const own = `${path}${suffix()}`;
    const bytes = Buffer.byteLength(own);
    if (bytes > PATH_BYTES_MAX) {
      throw new NvmeofError(
        'CONTROL_PATH',
        `${path}: too long for a socket: it may have ${PATH_BYTES_MAX - suffix().length} bytes; choose a shorter path`,
        { object: path },
      );
    }
    try {
      await clear(path);
      unlinkIfThere(own);
      await listenAt(server, own);
      linkSync(own, path);
      unlinkSync(own);
    } catch (error) {
      server.close();
      unlinkIfThere(own);
      if (error instanceof NvmeofError) throw error;
      if (codeOf(error) === 'EEXIST') throw inUse(path);
      throw new NvmeofError('CONTROL_PATH', `control socket ${path}: ${messageOf(error)}`, {
        object: path,
        cause: error,
      });
    }
    return new SocketFile(path);
  }

  /** Removes it, if it is still the one that was opened. */
  remove(): void {
    const found = lstatSync(this.path, { bigint: true, throwIfNoEntry: false });
    if (found?.ino === this.#inode) unlinkIfThere(this.path);
  }
}
