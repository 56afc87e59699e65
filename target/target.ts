/**
 * A running target: devices, ports, subsystems, and changes while it runs. Runs on the JavaScript thread; native moves the data.
 * What hosts may do once attached stands in controller.ts and commands.ts.
 */
import { EventEmitter } from 'node:events';
import { ProviderUnavailableError, acquireRuntime } from '../native/shared-runtime.ts';
import type { DeviceInfo, ReactorIndex } from '../native/index.ts';
import type { DeviceLease, RuntimeLease } from '../native/shared-runtime.ts';
import {
  formatAddress,
  formatEndpoint,
  parseAddress,
  sameAddress,
} from '../native/common/address.ts';
import { systemClock } from '../native/common/clock.ts';
import type { Clock } from '../native/common/clock.ts';
import { nonZero } from '../native/common/counters.ts';
import type { Counters } from '../native/common/counters.ts';
import type { FaultInjection, Faults } from '../native/common/faults.ts';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import { Serial } from '../native/common/serial.ts';
import { parseSize } from '../native/common/size.ts';
import { DISCOVERY_NQN } from '../native/wire/fabrics.ts';
import { captureFile } from './capture-file.ts';
import {
  IN_CAPSULE_BYTES_DEFAULT,
  check,
  coreProblem,
  namespaceSchema,
  parseConfig,
  portSchema,
  subsystemSchema,
} from './config.ts';
import type {
  NamespaceOptions,
  PortConfig,
  PortOptions,
  SubsystemConfig,
  SubsystemOptions,
  TargetConfig,
  TargetOptions,
} from './config.ts';
import type { Context } from './context.ts';
import type { Controller } from './controller.ts';
import { Discovery } from './discovery.ts';
import type { ControllerSummary, QueueSummary, TargetEvents } from './events.ts';
import type { HostRules } from './host-access.ts';
import { completeSubsystem } from './identity.ts';
import { silentLog } from './log.ts';
import type { Log } from './log.ts';
import { Placement } from './placement.ts';
import type { PlacementRule, PlacementView } from './placement.ts';
import { Port } from './port.ts';
import { reportQueues, reportReactor } from './statistics.ts';
import type { TargetStatistics } from './statistics.ts';
import { Subsystem } from './subsystem.ts';

export interface StartOptions {
  /** The reactors to run on; stays the caller's. Absent: a share of this process's own. */
  readonly runtime?: RuntimeLease;
  readonly log?: Log;
  readonly clock?: Clock;
  /** Which reactor takes a new queue. */
  readonly placement?: PlacementRule;
  /** Opens its devices for `injectFaults`: for tests. */
  readonly faultInjection?: boolean;
}

export interface ControllerView extends ControllerSummary {
  readonly ready: boolean;
  readonly keepAliveMs: number;
  readonly queues: readonly QueueSummary[];
}

const DISCOVERY_CONFIG: SubsystemConfig = {
  nqn: DISCOVERY_NQN,
  model: 'nvmeof discovery',
  allowAnyHost: true,
  hosts: [],
  namespaces: [],
};

export class Target extends EventEmitter<TargetEvents> implements FaultInjection {
  readonly #config: TargetConfig;
  readonly #faultInjection: boolean;
  readonly #ownLease: boolean;
  /** What the receive buffers of every device are sized for: the largest of the ports at the start. */
  readonly #inCapsuleBytesMax: number;
  /** Of the ports at the start, in canonical form. */
  readonly #firstAddresses: ReadonlySet<string>;
  readonly #lease: RuntimeLease;
  readonly #context: Context;
  readonly #placement: Placement;
  readonly #ports = new Map<number, Port>();
  readonly #subsystems = new Map<string, Subsystem>();
  readonly #changes = new Serial();
  #lastPortId = 0;
  #closing: Promise<void> | undefined;

  /** Opens what the configuration names and listens; on an error everything opened is closed again. */
  static async start(options: TargetOptions, services: StartOptions = {}): Promise<Target> {
    const config = parseConfig(options);
    const { cores, pollForever } = config;
    const lease =
      services.runtime ??
      acquireRuntime({ pollForever, ...(cores === undefined ? {} : { cores }) });
    const target = new Target(config, lease, services);
    try {
      for (const subsystem of config.subsystems) await target.addSubsystem(subsystem);
      for (const port of config.ports) await target.addPort(port);
    } catch (error) {
      await target.close();
      throw error;
    }
    return target;
  }

  private constructor(config: TargetConfig, lease: RuntimeLease, services: StartOptions) {
    super();
    this.#config = config;
    this.#faultInjection = services.faultInjection ?? false;
    this.#inCapsuleBytesMax = Math.max(
      IN_CAPSULE_BYTES_DEFAULT,
      ...config.ports.map(({ inCapsuleBytes }) => inCapsuleBytes),
    );
    this.#firstAddresses = new Set(
      config.ports.map(({ address }) => formatAddress(parseAddress(address))),
    );
    this.#ownLease = services.runtime === undefined;
    this.#lease = lease;
    const clock = services.clock ?? systemClock;
    const mine = new Set(lease.reactors);
    this.#placement = new Placement({
      clock,
      measure: () => lease.runtime.door.reactors().filter(({ index }) => mine.has(index)),
      rule: services.placement,
    });
    const discovery = new Discovery({
      ports: { [Symbol.iterator]: () => this.#ports.values() },
      subsystems: { [Symbol.iterator]: () => this.#subsystems.values() },
    });
    this.#context = {
      runtime: lease.runtime,
      clock,
      log: services.log ?? silentLog,
      subsystems: this.#subsystems,
      discovery,
      emit: (event, ...args) => {
        (this as EventEmitter).emit(event, ...args);
      },
    };
    this.#subsystems.set(DISCOVERY_NQN, new Subsystem(this.#context, DISCOVERY_CONFIG, true));
  }

  // What is there.

  /** As it would stand in the configuration file now; `saveConfig` writes it. */
  get config(): TargetConfig {
    return {
      ...this.#config,
      ports: [...this.#ports.values()].map(({ config }) => config),
      subsystems: this.#nvmSubsystems().map(({ config }) => config),
    };
  }

  get controllers(): ControllerView[] {
    return this.#allControllers().map((controller) => ({
      ...controller.summary,
      ready: controller.ready,
      keepAliveMs: controller.keepAlive.timeoutMs,
      queues: [...controller.ioQueues.values()].map((queue) => controller.queueSummary(queue)),
    }));
  }

  /** Queues and load of each reactor. */
  get placement(): PlacementView[] {
    return this.#placement.view();
  }

  get devices(): DeviceInfo[] {
    return [...new Set([...this.#ports.values()].map(({ device }) => device))];
  }

  /**
   * Counters of the data path, flat: 'soft.rx.packets', 'target.commands.read', … Summed over all devices and reactors of
   * this process, so a controller in the same process counts there too.
   */
  counters(): Counters {
    return this.#lease.runtime.door.counters();
  }

  /** On all its devices, or on the one of that address. Needs `faultInjection`. */
  injectFaults(faults: Faults, address?: string): void {
    const wanted = address === undefined ? undefined : parseAddress(address);
    const ports = [...this.#ports.values()].filter(
      ({ endpoint }) => wanted === undefined || sameAddress(endpoint.address, wanted),
    );
    if (ports.length === 0) {
      throw new NvmeofError('PORT_UNKNOWN', `no port on ${address ?? 'any address'}`);
    }
    for (const port of ports) port.injectFaults(faults);
  }

  /** What it did so far. Waits for a loop iteration of each of its reactors: for a look now and then. */
  statistics(): TargetStatistics {
    const known = new Map(
      this.#allControllers().flatMap((controller) =>
        [...controller.ioQueues.values()].map(
          (queue) => [queue.id, controller.queueSummary(queue)] as const,
        ),
      ),
    );
    const { door } = this.#lease.runtime;
    const placed = new Map(this.placement.map((view) => [view.reactor, view]));
    return {
      atMs: performance.now(),
      queues: reportQueues(known, door.queueStatistics()),
      reactors: door
        .reactors()
        .filter(({ index }) => placed.has(index))
        .map((reactor) =>
          reportReactor(reactor, placed.get(reactor.index), this.#portsOn(reactor.index)),
        ),
      counters: this.counters(),
    };
  }

  // Ports.

  addPort(options: PortOptions): Promise<void> {
    return this.#change(() => {
      const config = check(portSchema, options, 'port');
      if (config.inCapsuleBytes > this.#inCapsuleBytesMax) {
        throw new NvmeofError(
          'PORT_IN_CAPSULE',
          `inCapsuleBytes ${config.inCapsuleBytes}: buffers are sized for ${this.#inCapsuleBytesMax} since the start; start with a port that has more`,
          { object: config.address },
        );
      }
      const reactors = this.#reactorsFor(config);
      const port = new Port(
        this.#context,
        this.#placement,
        ++this.#lastPortId,
        config,
        this.#openDevice(config.address),
        reactors,
      );
      this.#ports.set(port.id, port);
      this.#discoveryChanged();
      this.#context.log.info({ endpoint: formatEndpoint(port.endpoint) }, 'listening');
      this.#context.emit('listening', port.endpoint);
      return Promise.resolve();
    });
  }

  /** Ends the associations that came in there, too. */
  removePort(address: string, portNumber: number): Promise<void> {
    return this.#change(async () => {
      const wanted = parseAddress(address);
      const port = [...this.#ports.values()].find(
        ({ endpoint }) => endpoint.port === portNumber && sameAddress(endpoint.address, wanted),
      );
      if (!port) {
        throw new NvmeofError('PORT_UNKNOWN', `no port ${address}:${portNumber}`, {
          object: `${address}:${portNumber}`,
        });
      }
      port.unlisten();
      this.#ports.delete(port.id);
      this.#discoveryChanged();
      await port.close('port removed');
    });
  }

  /** Reactors on the cores that the port names, of which the configuration may know less than what runs. */
  #reactorsFor({ address, port, cores }: PortConfig): readonly ReactorIndex[] {
    if (cores === undefined) return this.#lease.reactors;
    const running = this.#placement.view();
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

  #portsOn(reactor: ReactorIndex): string[] {
    return [...this.#ports.values()]
      .filter(({ reactors }) => reactors.includes(reactor))
      .map(({ endpoint }) => formatEndpoint(endpoint));
  }

  /** Ports on one address share the device. */
  #openDevice(address: string): DeviceLease {
    const canonical = formatAddress(parseAddress(address));
    const { provider, mtu, icrc, socketBufferBytes, pcap } = this.#config;
    const pcapPath =
      pcap === undefined ? undefined : captureFile(pcap, canonical, this.#firstAddresses);
    try {
      const device = this.#lease.openDevice({
        provider,
        address: canonical,
        pathMtu: mtu ?? 0,
        inCapsuleBytesMax: this.#inCapsuleBytesMax,
        ...(icrc === undefined ? {} : { icrc }),
        ...(this.#faultInjection ? { faultInjection: true } : {}),
        ...(socketBufferBytes === undefined ? {} : { socketBufferBytes }),
        ...(pcapPath === undefined ? {} : { pcapPath }),
      });
      if (pcapPath !== undefined && !device.shared) {
        this.#context.log.info({ address: canonical, file: pcapPath }, 'capturing packets');
      }
      return device;
    } catch (error) {
      if (error instanceof ProviderUnavailableError) throw error;
      throw new NvmeofError('DEVICE_OPEN', `cannot open ${canonical}: ${messageOf(error)}`, {
        object: canonical,
        cause: error,
      });
    }
  }

  // Subsystems and hosts.

  addSubsystem(options: SubsystemOptions): Promise<void> {
    return this.#change(async () => {
      const config = completeSubsystem(check(subsystemSchema, options, 'subsystem'));
      if (this.#subsystems.has(config.nqn)) {
        throw new NvmeofError('SUBSYSTEM_EXISTS', `${config.nqn} exists already`, {
          object: config.nqn,
        });
      }
      const subsystem = new Subsystem(this.#context, config);
      try {
        for (const namespace of config.namespaces) await subsystem.addNamespace(namespace);
      } catch (error) {
        await subsystem.remove('could not be opened');
        throw error;
      }
      this.#warnOfSharedIdentities(subsystem);
      this.#subsystems.set(config.nqn, subsystem);
      this.#discoveryChanged();
    });
  }

  /** Ends its controllers first; resolves when nothing of it is left. */
  async removeSubsystem(nqn: string): Promise<void> {
    const subsystem = this.#find(nqn);
    const removal = subsystem.remove('subsystem removed');
    this.#discoveryChanged();
    await removal;
    this.#subsystems.delete(nqn);
  }

  /** Resolves when no command of a host that is no longer allowed can do anything any more. */
  async setHosts(nqn: string, rules: HostRules): Promise<void> {
    const ending = this.#find(nqn).setHosts(rules);
    this.#discoveryChanged();
    await ending;
  }

  // Namespaces.

  /** Returns the NSID. */
  async addNamespace(nqn: string, options: NamespaceOptions): Promise<number> {
    const config = check(namespaceSchema, options, 'namespace');
    const subsystem = this.#find(nqn);
    const { nsid } = await subsystem.addNamespace(config);
    this.#warnOfSharedIdentities(subsystem);
    return nsid;
  }

  async removeNamespace(nqn: string, nsid: number): Promise<void> {
    await this.#find(nqn).removeNamespace(nsid);
  }

  async enableNamespace(nqn: string, nsid: number): Promise<void> {
    await this.#find(nqn).enableNamespace(nsid);
  }

  async disableNamespace(nqn: string, nsid: number): Promise<void> {
    await this.#find(nqn).disableNamespace(nsid);
  }

  /** `size` in bytes, or text with a unit. */
  async resizeNamespace(nqn: string, nsid: number, size: bigint | string): Promise<void> {
    const bytes = typeof size === 'string' ? parseSize(size) : size;
    await this.#find(nqn).resizeNamespace(nsid, bytes);
  }

  // The end.

  /** Takes no new connections, lets I/O in flight finish, ends all controllers, closes backings and devices. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(): Promise<void> {
    await this.#changes.idle();
    const ports = [...this.#ports.values()];
    for (const port of ports) port.unlisten();
    // Now, as a device takes its counters with it.
    this.#context.log.debug(nonZero(this.counters()), 'counters');
    await Promise.all(ports.map((port) => port.close('target closes')));
    for (const subsystem of this.#subsystems.values()) {
      if (!subsystem.removing) await subsystem.remove('target closes');
    }
    this.#ports.clear();
    this.#subsystems.clear();
    this.#placement.stop();
    if (this.#ownLease) this.#lease.release();
    this.#context.emit('closed');
  }

  #change(change: () => Promise<void>): Promise<void> {
    return this.#changes.run(() => {
      if (!this.#closing) return change();
      throw new NvmeofError('TARGET_CLOSING', 'the target is closing');
    });
  }

  #find(nqn: string): Subsystem {
    const subsystem = this.#subsystems.get(nqn);
    if (subsystem && !subsystem.discovery) return subsystem;
    throw new NvmeofError('SUBSYSTEM_UNKNOWN', `there is no subsystem ${nqn}`, { object: nqn });
  }

  #allControllers(): Controller[] {
    return [...this.#subsystems.values()].flatMap(({ controllers }) => [...controllers.values()]);
  }

  #nvmSubsystems(): Subsystem[] {
    return [...this.#subsystems.values()].filter(({ discovery }) => !discovery);
  }

  /** Hosts join paths by UUID and NGUID: two subsystems with the same ones are refused by them. */
  #warnOfSharedIdentities(subsystem: Subsystem): void {
    for (const other of this.#nvmSubsystems()) {
      if (other === subsystem) continue;
      for (const { config } of other.namespaces.values()) {
        const twin = [...subsystem.namespaces.values()].find(
          (mine) => mine.config.uuid === config.uuid || mine.config.nguid === config.nguid,
        );
        if (!twin) continue;
        this.#context.log.warn(
          { uuid: config.uuid, subsystems: [other.nqn, subsystem.nqn] },
          'two subsystems have a namespace with the same UUID or NGUID; hosts refuse the second',
        );
      }
    }
  }

  #discoveryChanged(): void {
    this.#context.discovery.changed();
    const controllers = this.#subsystems.get(DISCOVERY_NQN)?.controllers.values() ?? [];
    for (const controller of controllers) controller.discoveryChanged();
  }
}
