/** Where the control sockets of running `nvmeof attach` processes are: beside that of a target, one for each process. */
import { readdirSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { removeIfDead } from '../../../target/control/socket-file.ts';
import { defaultSocket, socketsToTry } from '../control/default-socket.ts';

const OWN = /^attach-\d+\.sock$/;
/** In a folder of its own, which the service has. */
const IN_FOLDER = 'attach.sock';

/** Undefined: there is no folder for it. */
export function attachSocket(target = defaultSocket(), pid = process.pid): string | undefined {
  return target === undefined ? undefined : join(dirname(target), `attach-${pid}.sock`);
}

function socketsIn(folder: string): string[] {
  try {
    return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
      if (entry.isDirectory()) return [join(folder, entry.name, IN_FOLDER)];
      return entry.isSocket() && OWN.test(entry.name) ? [join(folder, entry.name)] : [];
    });
  } catch {
    // Nobody has made it, or it is not ours to see.
    return [];
  }
}

/** Those beside this one whose process was killed go. */
export async function removeLeftOver(own: string): Promise<void> {
  const others = socketsIn(dirname(own)).filter((path) => path !== own && OWN.test(basename(path)));
  await Promise.all(others.map(removeIfDead));
}

/** Of this machine; some may be left over, and some not ours to open. */
export function attachSockets(targets: readonly string[] = socketsToTry()): string[] {
  return [...new Set(targets.map((path) => dirname(path)))].flatMap((folder) =>
    socketsIn(folder).sort(),
  );
}
