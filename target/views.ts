/**
 * What a target has, as plain values for people and programs that look at it: more than the configuration says, such as the size of
 * a file and who is attached.
 */
import type { Controller } from './controller.ts';
import type { NamespaceConfig, PortConfig } from './config.ts';
import type { ControllerSummary, QueueSummary } from './events.ts';
import type { Namespace } from './namespace.ts';
import type { Port } from './port.ts';
import type { Subsystem } from './subsystem.ts';

export interface ControllerView extends ControllerSummary {
  readonly ready: boolean;
  readonly keepAliveMs: number;
  readonly queues: readonly QueueSummary[];
}

export interface NamespaceView extends Pick<NamespaceConfig, 'blockSize' | 'cache'> {
  readonly nsid: number;
  readonly enabled: boolean;
  /** The path, or 'memory', 'null'. */
  readonly source: string;
  /** Bytes; 0 while disabled. */
  readonly size: bigint;
  readonly readOnly: boolean;
  readonly writeProtected: boolean;
  readonly uuid: string;
  readonly nguid: string;
}

export interface SubsystemView {
  readonly nqn: string;
  readonly serial: string;
  readonly model: string;
  readonly allowAnyHost: boolean;
  readonly hosts: readonly string[];
  /** Associations of hosts. */
  readonly controllers: number;
  readonly removing: boolean;
  readonly namespaces: readonly NamespaceView[];
}

export interface PortView extends PortConfig {
  /** PORTID in the discovery log. */
  readonly id: number;
  readonly provider: string;
  readonly fabric: string;
  readonly pathMtu: number;
}

export function viewNamespace(namespace: Namespace): NamespaceView {
  const { nsid, enabled, name, config, blocks, readOnly, writeProtected } = namespace;
  const { blockSize, cache, uuid, nguid } = config;
  return {
    ...{ nsid, enabled, source: name, size: blocks * BigInt(blockSize), blockSize, cache },
    ...{ readOnly, writeProtected, uuid, nguid },
  };
}

export function viewSubsystem(subsystem: Subsystem): SubsystemView {
  const { nqn, serial, model, access, controllers, removing, namespaces } = subsystem;
  return {
    ...{ nqn, serial, model, ...access.rules, controllers: controllers.size, removing },
    namespaces: [...namespaces.values()].map(viewNamespace),
  };
}

export function viewPort({ id, config, device }: Port): PortView {
  const { provider, fabric, pathMtu } = device;
  return { ...config, id, provider, fabric, pathMtu };
}

export function viewController(controller: Controller): ControllerView {
  return {
    ...controller.summary,
    ready: controller.ready,
    keepAliveMs: controller.keepAlive.timeoutMs,
    queues: [...controller.ioQueues.values()].map((queue) => controller.queueSummary(queue)),
  };
}
