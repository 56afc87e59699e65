/** What a port needs before it can listen: the device of its address, and the reactors on its cores. */
import {
  formatAddress,
  formatEndpoint,
  parseAddress,
  sameAddress,
} from '../native/common/address.ts';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import type { ReactorIndex } from '../native/index.ts';
import { ProviderUnavailableError } from '../native/shared-runtime.ts';
import type { DeviceLease, RuntimeLease } from '../native/shared-runtime.ts';
import { endpointOf, unknownPortProblem } from './ana-config.ts';
import type { AnaRule } from './ana.ts';
import { captureFile } from './capture-file.ts';
import { coreProblem } from './config.ts';
import type { PortConfig, TargetConfig } from './config.ts';
import type { Log } from './log.ts';
import type { PlacementView } from './placement.ts';
import type { Port } from './port.ts';

type DeviceConfig = Pick<
  TargetConfig,
  'provider' | 'mtu' | 'icrc' | 'socketBufferBytes' | 'pcap'
> & { readonly inCapsuleBytesMax: number; readonly faultInjection: boolean };

/** Reactors on the cores that the port names, of which the configuration may know less than what runs. */
export function reactorsFor(
  { address, port, cores }: PortConfig,
  all: readonly ReactorIndex[],
  running: readonly PlacementView[],
): readonly ReactorIndex[] {
  if (cores === undefined) return all;
  for (const core of cores) {
    const problem = coreProblem(
      core,
      running.map((one) => one.core),
    );
    if (problem === undefined) continue;
    const object = formatEndpoint({ address: parseAddress(address), port });
    throw new NvmeofError('PORT_CORES', `port ${object}: cores: ${problem}`, { object });
  }
  return running.flatMap(({ reactor, core }) => (cores.includes(core) ? [reactor] : []));
}

/** Ports on one address share the device. `firstAddresses`: of the ports at the start, for the names of capture files. */
export function openPortDevice(
  lease: RuntimeLease,
  config: DeviceConfig,
  where: { readonly address: string; readonly firstAddresses: ReadonlySet<string> },
  log: Log,
): DeviceLease {
  const address = formatAddress(parseAddress(where.address));
  const { provider, mtu, icrc, socketBufferBytes, pcap, inCapsuleBytesMax, faultInjection } =
    config;
  const pcapPath =
    pcap === undefined ? undefined : captureFile(pcap, address, where.firstAddresses);
  try {
    const device = lease.openDevice({
      provider,
      address,
      pathMtu: mtu ?? 0,
      inCapsuleBytesMax,
      ...(icrc === undefined ? {} : { icrc }),
      ...(faultInjection ? { faultInjection } : {}),
      ...(socketBufferBytes === undefined ? {} : { socketBufferBytes }),
      ...(pcapPath === undefined ? {} : { pcapPath }),
    });
    if (pcapPath !== undefined && !device.shared) {
      log.info({ address, file: pcapPath }, 'capturing packets');
    }
    return device;
  } catch (error) {
    if (error instanceof ProviderUnavailableError) throw error;
    throw new NvmeofError('DEVICE_OPEN', `cannot open ${address}: ${messageOf(error)}`, {
      object: address,
      cause: error,
    });
  }
}

/** Those on one address, or all. Throws PORT_UNKNOWN when there is none. */
export function portsAt(ports: Iterable<Port>, address: string | undefined): Port[] {
  const wanted = address === undefined ? undefined : parseAddress(address);
  const found = [...ports].filter(
    ({ endpoint }) => wanted === undefined || sameAddress(endpoint.address, wanted),
  );
  if (found.length > 0) return found;
  throw new NvmeofError('PORT_UNKNOWN', `no port on ${address ?? 'any address'}`);
}

/** ADDRESS:PORT of those whose queues may be placed there. */
export function endpointsOn(ports: Iterable<Port>, reactor: ReactorIndex): string[] {
  return [...ports]
    .filter(({ reactors }) => reactors.includes(reactor))
    .map(({ endpoint }) => formatEndpoint(endpoint));
}

/** An ANA rule names one of the ports, or none. Throws PORT_UNKNOWN; `place`: where the rule stands. */
export function checkRulePort(rule: AnaRule, ports: Iterable<Port>, place: string): void {
  const problem = unknownPortProblem(
    rule,
    [...ports].map(({ config }) => endpointOf(config)),
  );
  if (problem === undefined) return;
  throw new NvmeofError('PORT_UNKNOWN', `${place}: ${problem}`, { object: rule.port ?? '' });
}
