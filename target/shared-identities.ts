/** Hosts join paths by UUID and NGUID: two subsystems with the same ones are refused by them. */
import type { Log } from './log.ts';
import type { Subsystem } from './subsystem.ts';

/** Warns of each namespace of `subsystem` that one of the others has, too. */
export function warnOfSharedIdentities(
  log: Log,
  subsystem: Subsystem,
  all: Iterable<Subsystem>,
): void {
  for (const other of all) {
    if (other === subsystem) continue;
    for (const { config } of other.namespaces.values()) {
      const twin = [...subsystem.namespaces.values()].find(
        (mine) => mine.config.uuid === config.uuid || mine.config.nguid === config.nguid,
      );
      if (!twin) continue;
      log.warn(
        { uuid: config.uuid, subsystems: [other.nqn, subsystem.nqn] },
        'two subsystems have a namespace with the same UUID or NGUID; hosts refuse the second',
      );
    }
  }
}
