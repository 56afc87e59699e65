/**
 * Identities that a configuration leaves out: UUID, NGUID and serial number. They are computed from names, so that the same
 * export has the same identity after every restart, and hosts find their disk again:
 *   UUID    version 5 in the name space below, of the subsystem's NQN, a zero byte, and the backing ("path:/srv/a.img")
 *   NGUID   the 16 bytes of the UUID
 *   serial  the first 20 hex digits of a version-5 UUID of the NQN
 * A memory or null namespace has no name of its own: its NSID takes the place of the path.
 */
import { resolve } from 'node:path';
import { parseUuid, uuidFromName } from '../native/common/uuid.ts';
import type { NamespaceConfig, SubsystemConfig, TargetConfig } from './config.ts';

const NAME_SPACE = '6f2a7f1e-5bb0-5c1c-9d43-8e8f0c8f6a51';
const SERIAL_DIGITS = 20;

function backingName(namespace: NamespaceConfig): string {
  if (namespace.path !== undefined) return `path:${resolve(namespace.path)}`;
  const kind = namespace.memory === undefined ? 'null' : 'memory';
  return `${kind}:${namespace.nsid ?? 0}`;
}

export function derivedUuid(subsystemNqn: string, namespace: NamespaceConfig): string {
  return uuidFromName(NAME_SPACE, `${subsystemNqn}\0${backingName(namespace)}`);
}

export function derivedSerial(subsystemNqn: string): string {
  return uuidFromName(NAME_SPACE, subsystemNqn).replaceAll('-', '').slice(0, SERIAL_DIGITS);
}

export function nguidOfUuid(uuid: string): string {
  return Buffer.from(parseUuid(uuid)).toString('hex');
}

/** A namespace whose identity is settled. */
export type CompleteNamespace = NamespaceConfig & {
  readonly nsid: number;
  readonly uuid: string;
  readonly nguid: string;
};

/** Gives the namespace an NSID where it has none, then UUID and NGUID. */
export function completeNamespace(
  subsystemNqn: string,
  namespace: NamespaceConfig,
  takenNsids: ReadonlySet<number>,
): CompleteNamespace {
  let { nsid } = namespace;
  if (nsid === undefined) {
    nsid = 1;
    while (takenNsids.has(nsid)) nsid++;
  }
  const numbered = { ...namespace, nsid };
  const uuid = (namespace.uuid ?? derivedUuid(subsystemNqn, numbered)).toLowerCase();
  return { ...numbered, uuid, nguid: (namespace.nguid ?? nguidOfUuid(uuid)).toLowerCase() };
}

export function completeSubsystem(subsystem: SubsystemConfig): SubsystemConfig {
  const taken = new Set(
    subsystem.namespaces.flatMap(({ nsid }) => (nsid === undefined ? [] : [nsid])),
  );
  const namespaces = subsystem.namespaces.map((namespace) => {
    const complete = completeNamespace(subsystem.nqn, namespace, taken);
    taken.add(complete.nsid);
    return complete;
  });
  return {
    ...subsystem,
    serial: subsystem.serial ?? derivedSerial(subsystem.nqn),
    allowAnyHost: subsystem.allowAnyHost ?? subsystem.hosts.length === 0,
    namespaces,
  };
}

/** Fills in what is missing; what is there stays. */
export function completeIdentities(config: TargetConfig): TargetConfig {
  return { ...config, subsystems: config.subsystems.map(completeSubsystem) };
}
