/**
 * Who this host says it is: host NQN and host identifier. Given by the caller, else from /etc/nvme (as the kernel's
 * tools use), else made once and kept below the user's configuration folder, so that a target's allow-list stays
 * valid. Never empty: an empty file counts as absent.
 */
import { randomUUID } from 'node:crypto';
import { linkSync, mkdirSync, readFileSync, unlinkSync, writeFileSync } from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { isUuid, nqnProblem, uuidNqn, uuidOfNqn } from '../native/common/nqn.ts';
import { ZERO_UUID, uuidFromName } from '../native/common/uuid.ts';
import { ArgumentError } from './errors.ts';

export interface HostIdentity {
  readonly hostNqn: string;
  /** A UUID. */
  readonly hostId: string;
}

export interface HostIdentityOptions {
  readonly hostNqn?: string | undefined;
  readonly hostId?: string | undefined;
}

/** Where the files are; tests name their own folders. */
export interface HostIdentityFolders {
  readonly system: string;
  readonly user: string;
}

/** Name space of host identifiers derived from NQNs that hold no UUID. */
const HOST_ID_SPACE = '6f2ba0e4-3c1d-5b8e-9d0a-4a3c8f1e7b52';

export function defaultFolders(environment: NodeJS.ProcessEnv = process.env): HostIdentityFolders {
  const configuration = environment['XDG_CONFIG_HOME'];
  const base =
    configuration !== undefined && configuration !== ''
      ? configuration
      : join(homedir(), '.config');
  return { system: '/etc/nvme', user: join(base, 'nvmeof') };
}

/** First line of a file; undefined when there is none. */
function readLine(path: string): string | undefined {
  try {
    const line = readFileSync(path, 'utf8').split('\n')[0]?.trim();
    return line === '' ? undefined : line;
  } catch {
    return undefined;
  }
}

function checkedNqn(nqn: string, origin: string): string {
  const problem = nqnProblem(nqn);
  if (problem !== undefined) throw new ArgumentError(`host NQN "${nqn}" ${origin} ${problem}`);
  return nqn;
}

function checkedId(id: string, origin: string): string {
  if (!isUuid(id)) throw new ArgumentError(`host identifier "${id}" ${origin} is not a UUID`);
  if (id === ZERO_UUID) throw new ArgumentError(`host identifier ${origin} is zero`);
  return id.toLowerCase();
}

/**
 * Writes a whole file or none: linked into place, so that of two processes that start at once one wins and both read
 * the same.
 */
function makeOnce(folder: string, name: string, content: string): string {
  const path = join(folder, name);
  const temporary = `${path}.${process.pid}`;
  mkdirSync(folder, { recursive: true });
  writeFileSync(temporary, `${content}\n`);
  try {
    linkSync(temporary, path);
  } catch {
    // Another process was first, or the file was there and empty.
    if (readLine(path) === undefined) writeFileSync(path, `${content}\n`);
  } finally {
    unlinkSync(temporary);
  }
  return readLine(path) ?? content;
}

/** A folder that cannot be written costs only the stability: the identity lives as long as the process. */
let unsavedNqn: string | undefined;

function storedNqn(folders: HostIdentityFolders): string {
  const system = join(folders.system, 'hostnqn');
  const fromSystem = readLine(system);
  if (fromSystem !== undefined) return checkedNqn(fromSystem, `in ${system}`);
  const user = join(folders.user, 'hostnqn');
  const fromUser = readLine(user);
  if (fromUser !== undefined) return checkedNqn(fromUser, `in ${user}`);
  const made = uuidNqn(randomUUID());
  try {
    return checkedNqn(makeOnce(folders.user, 'hostnqn', made), `in ${user}`);
  } catch (error) {
    if (error instanceof ArgumentError) throw error;
    return (unsavedNqn ??= made);
  }
}

function hostIdOf(nqn: string): string {
  const inNqn = uuidOfNqn(nqn);
  return inNqn !== undefined && inNqn !== ZERO_UUID ? inNqn : uuidFromName(HOST_ID_SPACE, nqn);
}

export function hostIdentity(
  options: HostIdentityOptions = {},
  folders: HostIdentityFolders = defaultFolders(),
): HostIdentity {
  const given = options.hostNqn;
  const hostNqn = given === undefined ? storedNqn(folders) : checkedNqn(given, 'given');
  if (options.hostId !== undefined) return { hostNqn, hostId: checkedId(options.hostId, 'given') };
  // The stored id belongs to the stored NQN: one id with two NQNs is refused by hosts and targets.
  if (given === undefined || given === readLine(join(folders.system, 'hostnqn'))) {
    const path = join(folders.system, 'hostid');
    const stored = readLine(path);
    if (stored !== undefined) return { hostNqn, hostId: checkedId(stored, `in ${path}`) };
  }
  return { hostNqn, hostId: hostIdOf(hostNqn) };
}
