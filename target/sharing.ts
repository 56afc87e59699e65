/**
 * Namespaces that hosts will not join, or should not: two subsystems with the same identity, and targets that export one
 * subsystem as paths to the same data but differ. Each target knows only its own configuration, so these are warnings.
 */
import { CNTLID_MAX } from '../native/wire/fabrics.ts';
import { derivedUuid } from './identity.ts';
import type { NamespaceConfig, SubsystemConfig } from './config.ts';

export interface Warning {
  readonly fields: object;
  readonly text: string;
}

interface Row {
  readonly applies: (subsystem: SubsystemConfig, namespace: NamespaceConfig) => boolean;
  readonly text: string;
}

/** A subsystem with a range of controller ids of its own is one of several. */
function ownRange({ first, last }: SubsystemConfig['cntlids']): boolean {
  return first !== 1 || last !== CNTLID_MAX;
}

const ROWS: readonly Row[] = [
  {
    applies: ({ cntlids }, { shared }) => shared && !ownRange(cntlids),
    text: 'a namespace is "shared" and its subsystem has all "cntlids"; if another target exports the same subsystem, hosts refuse controllers with equal ids: give each target a range of its own',
  },
  {
    applies: ({ nqn, cntlids }, namespace) =>
      ownRange(cntlids) &&
      namespace.path !== undefined &&
      namespace.uuid === derivedUuid(nqn, namespace),
    text: 'the UUID of a namespace that several targets export is derived from its path; where another target has it at another path, hosts refuse that one: write the same "uuid" for all',
  },
  {
    applies: ({ cntlids }, { memory }) => ownRange(cntlids) && memory !== undefined,
    text: 'a namespace that several targets export lies in the memory of this one; hosts take the memories of the others for the same data and corrupt it: use a "path" that all have',
  },
];

/** Of completed configurations; with `nsid` those of one namespace. */
export function warnings(
  subsystem: SubsystemConfig,
  others: readonly SubsystemConfig[],
  nsid?: number,
): Warning[] {
  const { nqn } = subsystem;
  const sharing = subsystem.namespaces
    .filter((namespace) => nsid === undefined || namespace.nsid === nsid)
    .flatMap((namespace) =>
      ROWS.filter(({ applies }) => applies(subsystem, namespace)).map(({ text }) => ({
        fields: { subsystemNqn: nqn, nsid: namespace.nsid, path: namespace.path },
        text,
      })),
    );
  return [...twins(subsystem, others), ...sharing];
}

/** Hosts join paths by UUID and NGUID: two subsystems with the same ones are refused by them. */
function twins({ nqn, namespaces }: SubsystemConfig, others: readonly SubsystemConfig[]) {
  return others.flatMap((other) =>
    other.namespaces
      .filter(({ uuid, nguid }) =>
        namespaces.some((mine) => mine.uuid === uuid || mine.nguid === nguid),
      )
      .map(({ uuid }) => ({
        fields: { uuid, subsystems: [other.nqn, nqn] },
        text: 'two subsystems have a namespace with the same UUID or NGUID; hosts refuse the second',
      })),
  );
}
