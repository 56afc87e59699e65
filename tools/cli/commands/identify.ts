/** `nvmeof id-ctrl` and `nvmeof id-ns`: Identify data, field by field in the specification's names. */
import {
  addConnectOptions,
  connectOptions,
  hostPort,
  nsidOption,
  withController,
} from '../arguments.ts';
import type { ConnectFlags, HostPort } from '../arguments.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { properties } from '../tables.ts';

interface Flags extends ConnectFlags {
  readonly json?: boolean;
  readonly nsid: number;
}

/** Bytes as hexadecimal, flags as 0 and 1: as the fields stand in the specification. */
function plain(value: unknown): unknown {
  if (value instanceof Uint8Array) return Buffer.from(value).toString('hex');
  if (typeof value === 'boolean') return value ? 1 : 0;
  if (Array.isArray(value)) return value.map(plain);
  if (typeof value === 'object' && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([name, field]) => [name, plain(field)]));
  }
  return value;
}

function show(context: CliContext, data: object, json: boolean | undefined): void {
  const fields = Object.entries(plain(data) as Record<string, unknown>);
  if (json === true) {
    context.printJson(Object.fromEntries(fields));
    return;
  }
  const rows = fields
    .filter(([, value]) => !Array.isArray(value))
    .map(([name, value]) => [name, String(value)] as const);
  context.print(properties(rows));
}

export const idCtrlCommand: SubCommand = {
  name: 'id-ctrl',
  define(command, context) {
    addConnectOptions(command)
      .summary('print Identify Controller')
      .description('Prints the Identify Controller data of a subsystem, field by field.')
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .option('--json', 'print JSON')
      .action(async (target: HostPort, nqn: string, flags: Flags) => {
        await withController(connectOptions(target, nqn, flags), async (controller) => {
          show(context, await controller.identify(), flags.json);
        });
      });
    addExamples(command, [['one field', 'nvmeof id-ctrl 127.0.0.1 NQN --json | jq .mdts']]);
  },
};

export const idNsCommand: SubCommand = {
  name: 'id-ns',
  define(command, context) {
    addConnectOptions(command)
      .summary('print Identify Namespace')
      .description('Prints the Identify Namespace data of one namespace, field by field.')
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .addOption(nsidOption())
      .option('--json', 'print JSON')
      .action(async (target: HostPort, nqn: string, flags: Flags) => {
        await withController(connectOptions(target, nqn, flags), async (controller) => {
          show(context, await controller.identifyNamespace(flags.nsid), flags.json);
        });
      });
    addExamples(command, [['the second namespace', 'nvmeof id-ns 127.0.0.1 NQN --nsid 2']]);
  },
};
