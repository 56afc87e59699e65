/** Where the control socket of a target is when nobody says: the same rule for the target and for who looks for it. */
import { mkdirSync } from 'node:fs';
import { dirname, join } from 'node:path';

const SYSTEM_SOCKET = '/run/nvmeof/target.sock';

export interface Surroundings {
  readonly root: boolean;
  readonly runtimeFolder: string | undefined;
}

function surroundings(): Surroundings {
  return { root: process.getuid?.() === 0, runtimeFolder: process.env['XDG_RUNTIME_DIR'] };
}

/** Root's is the system's; a user's lies in the folder that the session gives. Undefined: there is none. */
export function defaultSocket({ root, runtimeFolder } = surroundings()): string | undefined {
  if (root) return SYSTEM_SOCKET;
  return runtimeFolder === undefined || runtimeFolder === ''
    ? undefined
    : join(runtimeFolder, 'nvmeof', 'target.sock');
}

/** Where to look for a target, the likeliest first. */
export function socketsToTry(around: Surroundings = surroundings()): string[] {
  return [...new Set([defaultSocket(around) ?? SYSTEM_SOCKET, SYSTEM_SOCKET])];
}

/** Makes the folder of the default socket. */
export function makeSocketFolder(socket: string): void {
  mkdirSync(dirname(socket), { recursive: true, mode: 0o755 });
}
