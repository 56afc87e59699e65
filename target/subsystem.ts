/**
 * One NVM subsystem: namespaces, hosts, controllers. Changes of its namespaces run one after the other, and each ends only when it
 * holds for all I/O. Controllers come and go by connect.ts.
 */
import type { TableId } from '../native/index.ts';
import { NvmeofError } from '../native/common/errors.ts';
import { Serial } from '../native/common/serial.ts';
import type { AnaPage, AnaRule } from './ana.ts';
import { AnaAccess } from './ana-access.ts';
import type { AnaReport, AnaView } from './ana-access.ts';
import type { ControllerIds } from './ana-config.ts';
import { NSID_MAX } from './config.ts';
import type { NamespaceConfig, SubsystemConfig } from './config.ts';
import { MAX_TRANSFER_BYTES } from './context.ts';
import type { Context } from './context.ts';
import type { Controller } from './controller.ts';
import { Fences } from './fences.ts';
import { HostAccess } from './host-access.ts';
import type { HostRules } from './host-access.ts';
import { completeNamespace, derivedSerial } from './identity.ts';
import type { CompleteNamespace } from './identity.ts';
import { Namespace } from './namespace.ts';

export class Subsystem {
  readonly nqn: string;
  readonly serial: string;
  readonly model: string;
  readonly discovery: boolean;
  readonly access: HostAccess;
  /** CQT: how long commands may last after the end of their controller, as hosts are told. */
  readonly commandQuiesceMs: number;
  readonly cntlids: ControllerIds;
  readonly fences: Fences;
  readonly controllers = new Map<number, Controller>();
  readonly #context: Context;
  readonly #table: TableId | undefined;
  readonly #ana: AnaAccess | undefined;
  readonly #namespaces = new Map<number, Namespace>();
  readonly #serial = new Serial();
  #lastCntlid: number;
  /** What hosts attached now were told about a volatile write cache. */
  #announcedVwc = false;
  #removing = false;

  constructor(context: Context, config: SubsystemConfig, discovery = false) {
    this.#context = context;
    this.nqn = config.nqn;
    this.serial = config.serial ?? derivedSerial(config.nqn);
    this.model = config.model;
    this.discovery = discovery;
    this.access = new HostAccess({
      allowAnyHost: config.allowAnyHost ?? config.hosts.length === 0,
      hosts: config.hosts,
    });
    this.cntlids = config.cntlids;
    this.#lastCntlid = config.cntlids.last;
    this.commandQuiesceMs = config.commandQuiesceMs;
    this.fences = new Fences(context, config.nqn, this.cntlids);
    if (discovery) return;
    this.#table = context.runtime.door.createTable();
    this.#ana = new AnaAccess(context, this.nqn, this.#table, config.ana, (view) => {
      this.#anaStateChanged(view);
    });
  }

  get removing(): boolean {
    return this.#removing;
  }

  /** The native namespace table of its I/O queues. */
  get table(): TableId {
    if (this.#table === undefined) throw new Error(`${this.nqn} has no I/O queues`);
    return this.#table;
  }

  get ana(): AnaAccess {
    if (this.#ana === undefined) throw new Error(`${this.nqn} has no namespaces`);
    return this.#ana;
  }

  /** The ANA log page at a port, with the namespaces that are enabled. */
  anaPage(endpoint: string, groupsOnly: boolean): AnaPage {
    const members = [...this.#namespaces.values()]
      .filter(({ enabled }) => enabled)
      .map(({ nsid, anaGroup }) => ({ nsid, group: anaGroup }));
    return this.ana.states.page(endpoint, members, groupsOnly);
  }

  get namespaces(): ReadonlyMap<number, Namespace> {
    return this.#namespaces;
  }

  /** An enabled namespace. */
  active(nsid: number): Namespace | undefined {
    const namespace = this.#namespaces.get(nsid);
    return namespace?.enabled ? namespace : undefined;
  }

  /** Ascending. */
  activeNsids(): number[] {
    return [...this.#namespaces.values()]
      .filter(({ enabled }) => enabled)
      .map(({ nsid }) => nsid)
      .sort((a, b) => a - b);
  }

  /** Whether a volatile write cache is there. Does not change while controllers are attached. */
  get volatileWriteCache(): boolean {
    if (this.controllers.size > 0) return this.#announcedVwc;
    return [...this.#namespaces.values()].some(({ info }) => info?.volatileWriteCache);
  }

  /** As it would stand in the configuration file now. */
  get config(): SubsystemConfig {
    const { allowAnyHost, hosts } = this.access.rules;
    return {
      nqn: this.nqn,
      serial: this.serial,
      model: this.model,
      allowAnyHost,
      hosts: [...hosts],
      cntlids: this.cntlids,
      commandQuiesceMs: this.commandQuiesceMs,
      namespaces: [...this.#namespaces.values()].map((namespace) => ({
        ...namespace.config,
        enabled: namespace.enabled,
      })),
      ana: this.#ana?.rules ?? [],
    };
  }

  // Controllers.

  /** A free controller id; undefined when all are taken. Recently used ones come last. */
  allocateCntlid(): number | undefined {
    const { first, last } = this.cntlids;
    for (let tried = first; tried <= last; tried++) {
      this.#lastCntlid = this.#lastCntlid === last ? first : this.#lastCntlid + 1;
      if (!this.controllers.has(this.#lastCntlid)) return this.#lastCntlid;
    }
    return undefined;
  }

  attach(controller: Controller): void {
    if (this.controllers.size === 0) this.#announcedVwc = this.volatileWriteCache;
    this.controllers.set(controller.cntlid, controller);
  }

  detach(controller: Controller): void {
    this.controllers.delete(controller.cntlid);
  }

  /** Ends the controllers that match; resolves when no command of theirs can do anything any more. */
  async closeControllers(
    reason: string,
    match: (controller: Controller) => boolean = () => true,
  ): Promise<void> {
    const closing = [...this.controllers.values()].filter(match);
    await Promise.all(closing.map((controller) => controller.close(reason)));
  }

  /** Changes who may connect, and ends the controllers of hosts that no longer may. */
  async setHosts(rules: HostRules): Promise<void> {
    if (this.#removing) throw this.#removingError();
    this.access.set(rules);
    await this.closeControllers(
      'host no longer allowed',
      ({ hostNqn }) => !this.access.allows(hostNqn),
    );
  }

  // Namespaces.

  addNamespace(config: NamespaceConfig): Promise<Namespace> {
    return this.#change(async () => {
      const complete = completeNamespace(this.nqn, config, new Set(this.#namespaces.keys()));
      this.#checkFree(complete);
      const namespace = new Namespace(complete);
      if (config.enabled) await this.#enable(namespace);
      this.#namespaces.set(complete.nsid, namespace);
      if (config.enabled) this.#changed(complete.nsid);
      return namespace;
    });
  }

  removeNamespace(nsid: number): Promise<void> {
    return this.#change(async () => {
      const namespace = this.#find(nsid);
      const wasEnabled = namespace.enabled;
      await this.#disable(namespace);
      this.#namespaces.delete(nsid);
      if (wasEnabled) this.#changed(nsid);
    });
  }

  enableNamespace(nsid: number): Promise<void> {
    return this.#change(async () => {
      const namespace = this.#find(nsid);
      if (namespace.enabled) return;
      await this.#enable(namespace);
      this.#changed(nsid);
    });
  }

  disableNamespace(nsid: number): Promise<void> {
    return this.#change(async () => {
      const namespace = this.#find(nsid);
      if (!namespace.enabled) return;
      await this.#disable(namespace);
      this.#changed(nsid);
    });
  }

  resizeNamespace(nsid: number, size: bigint): Promise<void> {
    return this.#change(async () => {
      const namespace = this.#find(nsid);
      await namespace.resize(this.#context.runtime.door, size);
      if (namespace.enabled) this.#changed(nsid);
    });
  }

  /** Resolves when no write that came before is in flight any more, or when writes may come. */
  protectNamespace(nsid: number, writeProtected: boolean): Promise<void> {
    return this.#change(async () => {
      const namespace = this.#find(nsid);
      if (!writeProtected && namespace.readOnly) {
        throw new NvmeofError(
          'NAMESPACE_READ_ONLY',
          `namespace ${nsid}: ${namespace.name} is opened read-only; remove the namespace, and add it without readOnly`,
          { object: namespace.name },
        );
      }
      const before = namespace.config.writeProtected;
      if (before === writeProtected) return;
      const told = namespace.writeProtected;
      namespace.protect(writeProtected);
      try {
        if (namespace.enabled) await this.#show(namespace);
      } catch (error) {
        namespace.protect(before);
        throw error;
      }
      if (namespace.enabled && namespace.writeProtected !== told) this.#changed(nsid);
    });
  }

  // Asymmetric access.

  /** Resolves when the state holds and, where it refuses I/O, none of it is under way. */
  setAnaState(rule: AnaRule): Promise<void> {
    if (!this.#removing) return this.ana.set(rule);
    return Promise.reject(this.#removingError());
  }

  /** Resolves when no command that began under the old group is under way. */
  setAnaGroup(nsid: number, group: number): Promise<void> {
    return this.#change(async () => {
      const namespace = this.#find(nsid);
      const before = namespace.anaGroup;
      if (before === group) return;
      namespace.anaGroup = group;
      if (!namespace.enabled) return;
      const shown = this.#show(namespace);
      this.#anaGroupChanged(namespace, before);
      try {
        await shown;
      } catch (error) {
        namespace.anaGroup = before;
        this.#anaGroupChanged(namespace, group);
        throw error;
      }
    });
  }

  /** Tells hosts at the port, as ADDRESS:PORT, to take other paths, or that they may use this one again; I/O is served as before. */
  withdraw(port: string, withdrawn: boolean): void {
    if (this.#removing) return;
    const groups = [...this.#namespaces.values()].map(({ anaGroup }) => anaGroup);
    if (!this.ana.states.withdraw(port, withdrawn, new Set(groups))) return;
    for (const controller of this.controllers.values()) {
      if (controller.arrival.endpoint === port) controller.anaChanged();
    }
  }

  /** A port that listens from now on, or does no more. */
  addPort(id: number, endpoint: string): void {
    if (!this.#removing) this.ana.addPort(id, endpoint);
  }

  removePort(id: number): void {
    if (!this.#removing) this.ana.removePort(id);
  }

  /** Of every port, groups that have a namespace or are not optimized. */
  get anaReport(): AnaReport[] {
    const { ports, states } = this.ana;
    const namespaces = [...this.#namespaces.values()];
    const groups = new Set([...states.groups, ...namespaces.map(({ anaGroup }) => anaGroup)]);
    return ports.flatMap((port) =>
      [...groups]
        .sort((a, b) => a - b)
        .map((group) => ({
          subsystemNqn: this.nqn,
          port,
          group,
          state: states.state(port, group),
          nsids: namespaces.filter(({ anaGroup }) => anaGroup === group).map(({ nsid }) => nsid),
        })),
    );
  }

  #anaStateChanged(view: AnaView): void {
    for (const controller of this.controllers.values()) {
      if (controller.arrival.endpoint === view.port) controller.anaChanged();
    }
    this.#context.log.info({ subsystemNqn: this.nqn, ...view }, 'ANA state changed');
    this.#context.emit('anaStateChanged', this.nqn, view);
  }

  #anaGroupChanged({ nsid, anaGroup }: Namespace, before: number): void {
    this.ana.states.membersChanged(before);
    this.ana.states.membersChanged(anaGroup);
    for (const controller of this.controllers.values()) controller.anaChanged();
    const fields = { subsystemNqn: this.nqn, nsid, group: anaGroup };
    this.#context.log.info(fields, 'ANA group changed');
    this.#context.emit('anaGroupChanged', this.nqn, nsid, anaGroup);
  }

  /** Controllers first, then namespaces. A second call is an error. */
  async remove(reason: string): Promise<void> {
    if (this.#removing) throw this.#removingError();
    this.#removing = true;
    this.fences.close();
    await this.closeControllers(reason);
    await this.#serial.run(async () => {
      for (const namespace of this.#namespaces.values()) await this.#disable(namespace);
      this.#namespaces.clear();
    });
    await this.#ana?.close();
    if (this.#table !== undefined) {
      const { runtime } = this.#context;
      await runtime.operation(runtime.door.destroyTable(this.#table));
    }
  }

  #change<T>(change: () => Promise<T>): Promise<T> {
    return this.#serial.run(() => {
      if (!this.#removing) return change();
      throw this.#removingError();
    });
  }

  #removingError(): NvmeofError {
    return new NvmeofError('SUBSYSTEM_REMOVING', `${this.nqn} is being removed already`, {
      object: this.nqn,
    });
  }

  #find(nsid: number): Namespace {
    const namespace = this.#namespaces.get(nsid);
    if (namespace) return namespace;
    throw new NvmeofError('NAMESPACE_UNKNOWN', `${this.nqn} has no namespace ${nsid}`, {
      object: `${this.nqn} namespace ${nsid}`,
    });
  }

  #checkFree({ nsid, uuid, nguid }: CompleteNamespace): void {
    if (nsid > NSID_MAX) {
      throw new NvmeofError('NAMESPACE_LIMIT', `${this.nqn}: NSIDs go up to ${NSID_MAX}`, {
        object: this.nqn,
      });
    }
    if (this.#namespaces.has(nsid)) {
      throw new NvmeofError('NAMESPACE_EXISTS', `${this.nqn} has a namespace ${nsid} already`, {
        object: `${this.nqn} namespace ${nsid}`,
      });
    }
    for (const { config } of this.#namespaces.values()) {
      if (config.uuid !== uuid && config.nguid !== nguid) continue;
      throw new NvmeofError(
        'NAMESPACE_DUPLICATE',
        `${this.nqn}: namespace ${nsid} has the UUID or NGUID of namespace ${config.nsid} (${uuid}); give it one of its own`,
        { object: uuid },
      );
    }
  }

  get #volatileAllowed(): boolean {
    return this.controllers.size === 0 || this.#announcedVwc;
  }

  async #enable(namespace: Namespace): Promise<void> {
    const { runtime } = this.#context;
    await namespace.open(runtime.door, this.#volatileAllowed);
    // A host may have attached while the backing opened, and been told that there is no volatile cache.
    if (namespace.info?.volatileWriteCache && !this.#volatileAllowed) {
      await namespace.close(runtime.door);
      await namespace.open(runtime.door, false);
    }
    try {
      this.#guard(namespace);
      await this.#show(namespace);
    } catch (error) {
      this.#unguard(namespace);
      await namespace.close(runtime.door);
      throw error;
    }
    this.ana.states.membersChanged(namespace.anaGroup);
  }

  /** Puts an open namespace into the native table, in place of what stands there. */
  async #show({ nsid, backing, writeProtected, anaGroup }: Namespace): Promise<void> {
    const { runtime } = this.#context;
    await runtime.operation(
      runtime.door.setNamespace(this.table, nsid, {
        backing: backing ?? 0,
        writeProtected,
        maxTransferBytes: MAX_TRANSFER_BYTES,
        anaGroup,
      }),
    );
  }

  /** Before the first command can reach the backing. */
  #guard({ backing, info, readOnly, name, config }: Namespace): void {
    if (backing === undefined || !info || readOnly) return;
    if (config.shared && !info.marks) {
      this.#context.log.warn(
        { subsystemNqn: this.nqn, nsid: config.nsid, path: name },
        'a shared namespace that is no file on a local file system: hosts that lose a path cannot have their writes fenced, and wait (docs/stale-writes.md)',
      );
    }
    this.fences.addBacking({ id: backing, name, shared: config.shared, marks: info.marks });
  }

  #unguard({ backing }: Namespace): void {
    if (backing !== undefined) this.fences.removeBacking(backing);
  }

  async #disable(namespace: Namespace): Promise<void> {
    if (!namespace.enabled) return;
    const { runtime } = this.#context;
    await runtime.operation(runtime.door.removeNamespace(this.table, namespace.nsid));
    this.#unguard(namespace);
    await namespace.close(runtime.door);
    this.ana.states.membersChanged(namespace.anaGroup);
  }

  #changed(nsid: number): void {
    for (const controller of this.controllers.values()) controller.namespaceChanged(nsid);
    // Those that it begins with are no change.
    if (this.#context.subsystems.get(this.nqn) === this) {
      this.#context.log.info({ subsystemNqn: this.nqn, nsid }, 'namespace changed');
    }
    this.#context.emit('namespaceChanged', this.nqn, nsid);
  }
}
