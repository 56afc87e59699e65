/** The discovery log as a host reads it. */
import {
  DISCOVERY_ENTRY_BYTES,
  DiscoveryLogEntry,
  DiscoveryLogHeader,
  DiscoverySubtype,
} from '../../../native/wire/logs.ts';
import type { HostQueue } from './support.ts';

export interface DiscoveryLog {
  readonly genctr: bigint;
  readonly entries: readonly DiscoveryLogEntry[];
  readonly nvm: readonly DiscoveryLogEntry[];
  readonly referrals: readonly DiscoveryLogEntry[];
}

export async function readDiscovery(admin: HostQueue): Promise<DiscoveryLog> {
  const { genctr, numrec } = DiscoveryLogHeader.decode((await admin.log(0x70, 1024)).data);
  const { data } = await admin.log(0x70, 1024 * (1 + Number(numrec)));
  const entries = Array.from({ length: Number(numrec) }, (_, index) =>
    DiscoveryLogEntry.decode(data, 1024 + index * DISCOVERY_ENTRY_BYTES),
  );
  const of = (wanted: number): DiscoveryLogEntry[] =>
    entries.filter(({ subtype }) => subtype === wanted);
  return {
    genctr,
    entries,
    nvm: of(DiscoverySubtype.nvm),
    referrals: of(DiscoverySubtype.referral),
  };
}
