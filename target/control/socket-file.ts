/**
 * The place of a control socket in the file system: mode 0600, one owner. A socket that nobody listens on any more is taken over; one
 * that somebody listens on, or a file of another kind, never.
 *
 * The server listens under a name of its own and is then linked to the path, which fails where something is: so of two that start at
 * once one wins, and closing the server removes no path but its own. A dead socket is replaced by whoever has taken, in the same way,
 * the path with a "~" behind it: a look at it and its replacement are one step for all others, and a place that is somebody's is
 * never empty.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { linkSync, lstatSync, renameSync, unlinkSync } from 'node:fs';
import type { BigIntStats } from 'node:fs';
import type { Server } from 'node:net';
import { connect } from 'node:net';
import { NvmeofError, messageOf } from '../../native/common/errors.ts';

/** sun_path of Linux, without its NUL. */
const PATH_BYTES_MAX = 107;
/** Of the name that a server has until it is linked. */
const OWN_BYTES = 9;
const ownName = (path: string): string => `${path}.${randomBytes(4).toString('hex')}`;

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

/** Whether somebody takes connections there; tests pass others, which are slow. */
export type LiveLook = (path: string) => Promise<boolean>;

export async function isLive(path: string): Promise<boolean> {
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

function look(path: string): BigIntStats | undefined {
  return lstatSync(path, { bigint: true, throwIfNoEntry: false });
}

/** Unless something else is there by now. */
function unlinkIfStill(path: string, inode: bigint): void {
  if (look(path)?.ino === inode) unlinkIfThere(path);
}

/** False where something is there already. */
function linked(own: string, path: string): boolean {
  try {
    linkSync(own, path);
    return true;
  } catch (error) {
    if (codeOf(error) === 'EEXIST') return false;
    throw error;
  }
}

/** One that wants the path: it listens at `own` already. */
class Taking {
  readonly #own: string;
  readonly #wanted: string;
  readonly #live: LiveLook;

  constructor(own: string, wanted: string, live: LiveLook) {
    this.#own = own;
    this.#wanted = wanted;
    this.#live = live;
  }

  /** Throws CONTROL_IN_USE when the path is somebody's, CONTROL_NO_SOCKET. */
  async take(path = this.#wanted): Promise<void> {
    while (!linked(this.#own, path)) {
      const found = look(path);
      if (!found) continue;
      if (!found.isSocket()) {
        throw new NvmeofError(
          'CONTROL_NO_SOCKET',
          `${path}: a file that is no socket is there; choose another path for the control socket`,
          { object: path },
        );
      }
      if (await this.#live(path)) throw inUse(this.#wanted);
      if (await this.#replaced(path)) return;
    }
  }

  /** Puts the socket in the place of a dead one. False when the place is another's, or nobody's, by now. */
  async #replaced(path: string): Promise<boolean> {
    const claim = `${path}~`;
    await this.take(claim);
    try {
      const found = look(path);
      if (!found || (await this.#live(path)) || look(path)?.ino !== found.ino) return false;
      const next = `${this.#own}~`;
      linkSync(this.#own, next);
      renameSync(next, path);
      return true;
    } finally {
      unlinkIfThere(claim);
    }
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

/**
 * Removes the socket of a process that was killed, in a place that nobody else will take: its name is that process's own.
 * What is alive, cannot be told, is no socket, or is not ours to remove stays.
 */
export async function removeIfDead(path: string): Promise<void> {
  try {
    const found = look(path);
    if (found?.isSocket() && !(await isLive(path))) unlinkIfStill(path, found.ino);
  } catch {
    // Another removed it, or it is another user's.
  }
}

export class SocketFile {
  readonly path: string;
  readonly #inode: bigint;

  private constructor(path: string) {
    this.path = path;
    this.#inode = lstatSync(path, { bigint: true }).ino;
  }

  /** Makes `server` listen at `path`. Throws CONTROL_IN_USE, CONTROL_NO_SOCKET, CONTROL_PATH. */
  static async open(server: Server, path: string, live: LiveLook = isLive): Promise<SocketFile> {
    const own = ownName(path);
    if (Buffer.byteLength(own) > PATH_BYTES_MAX) {
      throw new NvmeofError(
        'CONTROL_PATH',
        `${path}: too long for a socket: it may have ${PATH_BYTES_MAX - OWN_BYTES} bytes; choose a shorter path`,
        { object: path },
      );
    }
    try {
      await listenAt(server, own);
      await new Taking(own, path, live).take();
      unlinkSync(own);
    } catch (error) {
      server.close();
      unlinkIfThere(own);
      if (error instanceof NvmeofError) throw error;
      throw new NvmeofError('CONTROL_PATH', `control socket ${path}: ${messageOf(error)}`, {
        object: path,
        cause: error,
      });
    }
    return new SocketFile(path);
  }

  /** Removes it, if it is still the one that was opened. */
  remove(): void {
    unlinkIfStill(this.path, this.#inode);
  }
}
