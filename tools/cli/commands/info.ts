/** `nvmeof info ADDRESS NQN`: controller, namespaces and queues at a glance. */
import type { Controller, Namespace } from '../../../initiator/index.ts';
import { formatSize } from '../../../native/common/size.ts';
import {
  addConnectOptions,
  addQueuesOption,
  connectOptions,
  depthOption,
  hostPort,
  noteQueues,
  withController,
} from '../arguments.ts';
import type { ConnectFlags, HostPort } from '../arguments.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable, properties } from '../tables.ts';

interface Flags extends ConnectFlags {
  readonly json?: boolean;
}

export function namespaceJson(namespace: Namespace): Record<string, unknown> {
  return {
    nsid: namespace.nsid,
    blockSize: namespace.lbaSize,
    blocks: namespace.lbaCount,
    bytes: namespace.bytes,
    writeProtected: namespace.writeProtected,
    ...namespace.ids,
  };
}

export function versionText({ properties: { vs } }: Controller): string {
  return `${vs.major}.${vs.minor}.${vs.tertiary}`;
}

function infoJson(controller: Controller): Record<string, unknown> {
  const { data } = controller;
  return {
    nqn: controller.nqn,
    endpoint: controller.endpoint,
    sourceAddress: controller.sourceAddress,
    pathMtu: controller.pathMtu,
    cntlid: controller.cntlid,
    model: data.mn,
    serial: data.sn,
    firmware: data.fr,
    version: versionText(controller),
    transferBytesMax: controller.transferBytesMax,
    keepAliveMs: controller.keepAliveMs,
    queues: controller.queues.map(({ qid, entries, reactor }) => ({ qid, entries, reactor })),
    namespaces: controller.namespaces.map(namespaceJson),
    skippedNamespaces: controller.skippedNamespaces,
  };
}

function printInfo(context: CliContext, controller: Controller): void {
  const { data } = controller;
  context.print(
    properties([
      ['Subsystem', controller.nqn],
      [
        'Controller',
        `${controller.cntlid} at ${controller.endpoint}, NVMe ${versionText(controller)}`,
      ],
      ['Model', `${data.mn}, serial ${data.sn}, firmware ${data.fr}`],
      ['From', `${controller.sourceAddress}, path MTU ${controller.pathMtu}`],
      ['Largest transfer', formatSize(controller.transferBytesMax)],
      ['Write cache', data.vwcPresent ? 'yes: Flush makes writes durable' : 'none'],
      ['Keep alive', controller.keepAliveMs === 0 ? 'off' : `${controller.keepAliveMs} ms`],
      ['Queues', controller.queues.map(({ qid, entries }) => `${qid} (${entries})`).join(', ')],
    ]),
  );
  context.print();
  const rows = controller.namespaces.map((namespace) => [
    String(namespace.nsid),
    formatSize(namespace.bytes),
    `${namespace.lbaSize} B`,
    namespace.writeProtected ? 'read-only' : 'read-write',
    namespace.ids.uuid ?? namespace.ids.nguid ?? namespace.ids.eui64 ?? '-',
  ]);
  context.print(
    rows.length > 0
      ? plainTable(['NSID', 'size', 'block', 'access', 'UUID or other id'], rows)
      : 'No namespaces.',
  );
  for (const { nsid, reason } of controller.skippedNamespaces) {
    context.print(`Namespace ${nsid} cannot be used: ${reason}.`);
  }
}

export const infoCommand: SubCommand = {
  name: 'info',
  define(command, context) {
    addQueuesOption(addConnectOptions(command))
      .summary('show controller, namespaces and queues of a subsystem')
      .description(
        'Connects to a subsystem and shows what it is, its namespaces and the queues it grants.',
      )
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .addOption(depthOption())
      .option('--json', 'print JSON')
      .action(async (target: HostPort, nqn: string, flags: Flags) => {
        await withController(connectOptions(target, nqn, flags), (controller) => {
          noteQueues(context, controller);
          if (flags.json === true) context.printJson(infoJson(controller));
          else printInfo(context, controller);
          return Promise.resolve();
        });
      });
    addExamples(command, [
      ['what is behind an NQN', 'nvmeof info 127.0.0.1 nqn.2026-11.io.nvmeof:disk'],
      [
        'how many queues it grants',
        'nvmeof info 127.0.0.1 nqn.2026-11.io.nvmeof:disk --nr-io-queues 8',
      ],
    ]);
  },
};
