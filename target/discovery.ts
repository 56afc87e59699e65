/**
 * The discovery subsystem: the log page that lists what a host may connect to, and its generation counter (NVMe Base 2.1 section
 * 5.1.12.3.1). A port on a wildcard address is listed with the address the host reached.
 */
import type { DeviceInfo } from '../native/index.ts';
import { formatAddress, isWildcard, parseAddress } from '../native/common/address.ts';
import type { Address } from '../native/common/address.ts';
import { ADMIN_QUEUE_ENTRIES_MIN, CNTLID_DYNAMIC, DISCOVERY_NQN } from '../native/wire/fabrics.ts';
import {
  AddressFamily,
  DISCOVERY_ENTRY_BYTES,
  DiscoveryLogEntry,
  DiscoveryLogHeader,
  DiscoverySubtype,
  RdmaCms,
  RdmaProvider,
  RdmaQpType,
  TransportType,
} from '../native/wire/logs.ts';
import type { PortConfig, ReferralConfig } from './config.ts';
import type { Arrival } from './context.ts';
import type { Subsystem } from './subsystem.ts';

export interface ListedPort {
  readonly id: number;
  readonly config: PortConfig;
  readonly device: DeviceInfo;
}

const PROVIDER_TYPES: Readonly<Record<DeviceInfo['fabric'], number>> = {
  rocev2: RdmaProvider.rocev2,
  infiniband: RdmaProvider.infiniband,
  iwarp: RdmaProvider.iwarp,
};

/** What the discovery log is made from. */
export interface DiscoverySource {
  readonly ports: Iterable<ListedPort>;
  readonly subsystems: Iterable<Subsystem>;
  /** Asked for each page. */
  referrals(): readonly ReferralConfig[];
  /** Whether hosts find subsystems at all. */
  serving(): boolean;
}

function addressFor(port: PortConfig, reached: Address): Address {
  const own = parseAddress(port.address);
  return isWildcard(own) ? reached : own;
}

function entry(port: ListedPort, reached: Address, nqn: string, subtype: number): Uint8Array {
  const current = subtype === DiscoverySubtype.currentDiscovery;
  const address = addressFor(port.config, reached);
  return DiscoveryLogEntry.encode({
    trtype: TransportType.rdma,
    adrfam: address.family === 4 ? AddressFamily.ipv4 : AddressFamily.ipv6,
    subtype,
    treqDisableSqFlowControl: true,
    portid: port.id,
    cntlid: CNTLID_DYNAMIC,
    asqsz: ADMIN_QUEUE_ENTRIES_MIN,
    eflagsDuplicateInfo: current,
    eflagsExplicitPersistent: current,
    trsvcid: String(port.config.port),
    subnqn: nqn,
    // A zone means something on one machine only.
    traddr: formatAddress({ ...address, zone: undefined }),
    tsasRdmaQptype: RdmaQpType.connected,
    tsasRdmaPrtype: PROVIDER_TYPES[port.device.fabric],
    tsasRdmaCms: RdmaCms.rdmaCm,
  });
}

const REFERRAL_TRANSPORTS: Readonly<
  Record<ReferralConfig['transport'], Parameters<typeof DiscoveryLogEntry.encode>[0]>
> = {
  rdma: {
    trtype: TransportType.rdma,
    tsasRdmaQptype: RdmaQpType.connected,
    tsasRdmaPrtype: RdmaProvider.none,
    tsasRdmaCms: RdmaCms.rdmaCm,
  },
  // Its transport-specific field is 0: no security.
  tcp: { trtype: TransportType.tcp },
};

/** What is not known of a service elsewhere stays 0. */
function referralEntry({ address: text, port, nqn, transport }: ReferralConfig): Uint8Array {
  const address = parseAddress(text);
  return DiscoveryLogEntry.encode({
    ...REFERRAL_TRANSPORTS[transport],
    adrfam: address.family === 4 ? AddressFamily.ipv4 : AddressFamily.ipv6,
    subtype: DiscoverySubtype.referral,
    cntlid: CNTLID_DYNAMIC,
    asqsz: ADMIN_QUEUE_ENTRIES_MIN,
    trsvcid: String(port),
    subnqn: nqn,
    traddr: formatAddress(address),
  });
}

export class Discovery {
  readonly #source: DiscoverySource;
  #generation = 0n;

  constructor(source: DiscoverySource) {
    this.#source = source;
  }

  /** Counts up with every change of what the log may say. */
  get generation(): bigint {
    return this.#generation;
  }

  changed(): void {
    this.#generation += 1n;
  }

  page(hostNqn: string, arrival: Arrival): Uint8Array {
    const reached = parseAddress(arrival.local);
    const subsystems = this.#source.serving() ? [...this.#source.subsystems] : [];
    const allowed = subsystems.filter(
      (subsystem) =>
        !subsystem.discovery && !subsystem.removing && subsystem.access.allows(hostNqn),
    );
    const own = [...this.#source.ports].flatMap((port) => [
      entry(port, reached, DISCOVERY_NQN, DiscoverySubtype.currentDiscovery),
      ...allowed.map(({ nqn }) => entry(port, reached, nqn, DiscoverySubtype.nvm)),
    ]);
    const entries = [...own, ...this.#source.referrals().map(referralEntry)];
    const page = new Uint8Array(DiscoveryLogHeader.size + entries.length * DISCOVERY_ENTRY_BYTES);
    DiscoveryLogHeader.write(page, 0, {
      genctr: this.#generation,
      numrec: BigInt(entries.length),
    });
    entries.forEach((bytes, index) => {
      page.set(bytes, DiscoveryLogHeader.size + index * DISCOVERY_ENTRY_BYTES);
    });
    return page;
  }
}
