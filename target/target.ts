/**
 * A running target: devices, ports, subsystems, and changes while it runs. Runs on the JavaScript thread; native moves the data.
 * What hosts may do once attached stands in controller.ts and commands.ts.
 */
import { EventEmitter } from 'node:events';
import { acquireRuntime } from '../native/shared-runtime.ts';
import type { DeviceInfo } from '../native/index.ts';
import type { RuntimeLease } from '../native/shared-runtime.ts';
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
import { NvmeofError } from '../native/common/errors.ts';
import { Serial } from '../native/common/serial.ts';
import { parseSize } from '../native/common/size.ts';
import { DISCOVERY_NQN } from '../native/wire/fabrics.ts';
import { anaGroupSchema, anaRuleSchema, endpointOf } from './ana-config.ts';
import type { AnaRule } from './ana.ts';
import type { AnaReport } from './ana-access.ts';
import {
  IN_CAPSULE_BYTES_DEFAULT,
  check,
  namespaceSchema,
  parseConfig,
  portSchema,
  portsOverlap,
  subsystemSchema,
} from './config.ts';
import type {
  NamespaceOptions,
  PortOptions,
  SubsystemConfig,
  SubsystemOptions,
  TargetConfig,
  TargetOptions,
} from './config.ts';
import type { Context } from './context.ts';
import type { Controller } from './controller.ts';
import { Discovery } from './discovery.ts';
import { DISCOVERY_CONFIG } from './discovery-config.ts';
import { Drain } from './drain.ts';
import type { DrainReport } from './drain.ts';
import type { TargetEvents } from './events.ts';
import { sayFarewell, welcomeBack } from './farewell.ts';
import type { HostRules } from './host-access.ts';
import { completeSubsystem } from './identity.ts';
import { silentLog } from './log.ts';
import type { Log } from './log.ts';
import { Placement } from './placement.ts';
import type { PlacementRule, PlacementView } from './placement.ts';
import { checkRulePort, openPortDevice, portsAt, reactorsFor } from './port-resources.ts';
import { Port } from './port.ts';
import { Referrals } from './referrals.ts';
import { warnings } from './sharing.ts';
import { takeStatistics } from './statistics.ts';
import type { TargetStatistics } from './statistics.ts';
import { Subsystem } from './subsystem.ts';
import { viewController, viewPort, viewSubsystem } from './views.ts';
import type { ControllerView, PortView, SubsystemView } from './views.ts';

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
  /** Discovery services elsewhere that hosts are told of. */
  readonly referrals: Referrals;
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
      for (const subsystem of config.subsystems) await target.#addSubsystem(subsystem);
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
    this.referrals = new Referrals(config.referrals, () => {
      this.#discoveryChanged();
    });
    const drain = new Drain({
      clock,
      controllers: () => this.#nvmSubsystems().flatMap((one) => [...one.controllers.values()]),
      changed: () => {
        this.#discoveryChanged();
      },
      farewell: () => this.#farewell([...this.#ports.values()]),
      welcome: () => {
        welcomeBack(this.#nvmSubsystems(), [...this.#ports.values()]);
      },
    });
    const discovery = new Discovery({
      ports: { [Symbol.iterator]: () => this.#ports.values() },
      subsystems: { [Symbol.iterator]: () => this.#subsystems.values() },
      referrals: () => this.referrals.all,
      serving: () => !drain.active,
    });
    this.#context = {
      runtime: lease.runtime,
      clock,
      log: services.log ?? silentLog,
      subsystems: this.#subsystems,
      discovery,
      drain,
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
      subsystems: this.#nvmSubsystems().flatMap(({ removing, config }) => (removing ? [] : config)),
      referrals: [...this.referrals.all],
    };
  }

  /** State of each ANA group at each port; groups that no namespace is in and that are optimized are left out. */
  get ana(): AnaReport[] {
    return this.#nvmSubsystems().flatMap(({ anaReport }) => anaReport);
  }

  get subsystems(): SubsystemView[] {
    return this.#nvmSubsystems().map(viewSubsystem);
  }

  get ports(): PortView[] {
    return [...this.#ports.values()].map(viewPort);
  }

  /** Whether new associations are refused. */
  get drained(): boolean {
    return this.#context.drain.active;
  }

  get controllers(): ControllerView[] {
    return this.#allControllers().map(viewController);
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
    for (const port of portsAt(this.#ports.values(), address)) port.injectFaults(faults);
  }

  /** What it did so far. Waits for a loop iteration of each of its reactors: for a look now and then. */
  statistics(): TargetStatistics {
    const { door } = this.#lease.runtime;
    return takeStatistics(door, this.#allControllers(), this.placement, [...this.#ports.values()]);
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
      const twin = [...this.#ports.values()].find((one) => portsOverlap(one.config, config));
      if (twin) {
        const object = formatEndpoint(twin.endpoint);
        throw new NvmeofError(
          'PORT_EXISTS',
          `there is a port at ${object} already; remove it first, or choose another address or port`,
          { object },
        );
      }
      const reactors = reactorsFor(config, this.#lease.reactors, this.#placement.view());
      const id = ++this.#lastPortId;
      const port = new Port(
        this.#context,
        this.#placement,
        id,
        config,
        openPortDevice(
          this.#lease,
          {
            ...this.#config,
            inCapsuleBytesMax: this.#inCapsuleBytesMax,
            faultInjection: this.#faultInjection,
          },
          { address: config.address, firstAddresses: this.#firstAddresses },
          this.#context.log,
        ),
        reactors,
      );
      this.#ports.set(id, port);
      for (const subsystem of this.#nvmSubsystems()) subsystem.addPort(id, endpointOf(config));
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
      await this.#farewell([port]);
      await port.close('port removed');
      welcomeBack(this.#nvmSubsystems(), [port]);
      for (const subsystem of this.#nvmSubsystems()) subsystem.removePort(port.id);
    });
  }

  // Subsystems and hosts.

  async addSubsystem(options: SubsystemOptions): Promise<void> {
    const config = check(subsystemSchema, options, 'subsystem');
    config.ana.forEach((rule, index) => {
      checkRulePort(rule, this.#ports.values(), `subsystem: ana[${index}].port`);
    });
    await this.#addSubsystem(config);
  }

  #addSubsystem(options: SubsystemConfig): Promise<void> {
    return this.#change(async () => {
      const config = completeSubsystem(options);
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
      this.#warn(subsystem);
      for (const { id, config: port } of this.#ports.values()) {
        subsystem.addPort(id, endpointOf(port));
      }
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
    this.#warn(subsystem, nsid);
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

  /** Hosts may write or not. Resolves when that holds for all I/O. */
  async protectNamespace(nqn: string, nsid: number, writeProtected: boolean): Promise<void> {
    await this.#find(nqn).protectNamespace(nsid, writeProtected);
  }

  // Asymmetric namespace access (docs/multipath.md).

  /**
   * The state of an ANA group, at one port or at all. Resolves when it holds: where the state refuses I/O, none of it is
   * under way any more. Throws CONFIG_INVALID, SUBSYSTEM_UNKNOWN, PORT_UNKNOWN.
   */
  async setAnaState(nqn: string, change: AnaRule): Promise<void> {
    const rule = check(anaRuleSchema, change, 'ANA state');
    checkRulePort(rule, this.#ports.values(), 'ANA state: port');
    await this.#find(nqn).setAnaState(rule);
  }

  /** Moves a namespace to another group. Resolves when nothing that began in the old one is under way. */
  async setAnaGroup(nqn: string, nsid: number, group: number): Promise<void> {
    const checked = check(anaGroupSchema, group, 'ANA group');
    await this.#find(nqn).setAnaGroup(nsid, checked);
  }

  // The end.

  /** Refuses new associations, gives hosts `waitMs` to leave, and ends the associations that are left once their I/O has ended. */
  drain(waitMs = 0): Promise<DrainReport> {
    return this.#context.drain.run(waitMs);
  }

  /** Takes hosts again after `drain`. */
  resume(): void {
    this.#context.drain.resume();
  }

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
    await this.#farewell(ports);
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

  /** Hosts that have other paths take them. */
  #farewell(ports: readonly Port[]): Promise<void> {
    return sayFarewell(this.#nvmSubsystems(), ports, this.#context);
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

  #warn(subsystem: Subsystem, nsid?: number): void {
    const others = this.#nvmSubsystems().filter((other) => other !== subsystem);
    const configs = others.map(({ config }) => config);
    for (const { fields, text } of warnings(subsystem.config, configs, nsid)) {
      this.#context.log.warn(fields, text);
    }
  }

  #discoveryChanged(): void {
    this.#context.discovery.changed();
    const controllers = this.#subsystems.get(DISCOVERY_NQN)?.controllers.values() ?? [];
    for (const controller of controllers) controller.discoveryChanged();
  }
}
