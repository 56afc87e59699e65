/** `nvmeof subsystem`: subsystems of a running target. */
import { resolve } from 'node:path';
import { z } from 'zod';
import { parseExport } from '../../../target/index.ts';
import type { NamespaceConfig } from '../../../target/index.ts';
import { done, subsystemView } from '../../../target/control/schemas.ts';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import { CliError } from '../context.ts';
import type { SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';

interface AddFlags extends SharedFlags {
  readonly export?: readonly string[];
  readonly serial?: string;
  readonly model?: string;
  readonly allow?: readonly string[];
}

const each = (text: string, all: readonly string[] = []): readonly string[] => [...all, text];

/** An export string as the target, which runs in another folder, understands it. */
export function namespaceOf(text: string): NamespaceConfig {
  const { namespace, serial } = parseExport(text);
  if (serial !== undefined) {
    throw new CliError(ExitCode.usage, `${text}: the serial number belongs to the subsystem`, {
      remedy: 'give it when the subsystem is added: nvmeof subsystem add NQN --serial TEXT',
    });
  }
  const { path } = namespace;
  return path === undefined ? namespace : { ...namespace, path: resolve(path) };
}

type View = z.output<typeof subsystemView>;

function row({ nqn, allowAnyHost, hosts, controllers, removing, namespaces }: View): string[] {
  const allowed = allowAnyHost ? 'any' : String(hosts.length);
  const enabled = namespaces.filter((one) => one.enabled).length;
  const name = removing ? `${nqn} (being removed)` : nqn;
  return [name, `${enabled} of ${namespaces.length}`, allowed, String(controllers)];
}

export const subsystemCommand: SubCommand = {
  name: 'subsystem',
  define(command, context) {
    command
      .summary('list, add and remove subsystems of a running target')
      .description(
        'Subsystems of a running target. Changes hold at once, for hosts that are attached too.',
      );
    verb(command, 'list', 'List subsystems').action((flags: SharedFlags) =>
      perform(context, flags, {
        method: 'subsystem.list',
        params: {},
        result: z.array(subsystemView),
        show: (_, all) => {
          context.print(
            all.length === 0
              ? 'There is no subsystem.'
              : plainTable(['subsystem', 'namespaces', 'hosts', 'controllers'], all.map(row)),
          );
        },
      }),
    );
    verb(command, 'add <nqn>', 'Add a subsystem with all that is named here, or nothing of it')
      .option('--export <what>', 'a namespace as nvmeof target takes it; repeat for more', each)
      .option('--allow <host-nqn>', 'only this host; repeat for more (default: any)', each)
      .option('--serial <text>', 'serial number (default: derived from the NQN)')
      .option('--model <text>', 'model number')
      .action((nqn: string, flags: AddFlags) =>
        perform(context, flags, {
          method: 'subsystem.add',
          params: {
            nqn,
            serial: flags.serial,
            model: flags.model,
            hosts: flags.allow,
            namespaces: flags.export?.map(namespaceOf),
          },
          result: subsystemView,
          show: (_, { namespaces }) => {
            context.print(`Added ${nqn} with ${namespaces.length} namespaces.`);
          },
        }),
      );
    verb(command, 'remove <nqn>', 'End its controllers, and remove a subsystem').action(
      (nqn: string, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'subsystem.remove',
          params: { nqn },
          result: done,
          show: () => {
            context.print(`Removed ${nqn}.`);
          },
        }),
    );
    addExamples(command, [
      ['what there is', 'nvmeof subsystem list'],
      ['for scripts', 'nvmeof subsystem list --json'],
      [
        'one more, for one host',
        'nvmeof subsystem add nqn.2024-01.com.example:b --export disk.img --allow HOSTNQN',
      ],
      ['away with it', 'nvmeof subsystem remove nqn.2024-01.com.example:b'],
    ]);
  },
};
