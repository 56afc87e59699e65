/** `nvmeof ana`: the states of ANA groups of a running target. */
import { Option } from 'commander';
import { z } from 'zod';
import { ANA_GROUP_MAX, ANA_STATE_NAMES } from '../../../target/ana.ts';
import { anaView } from '../../../target/control/ana-methods.ts';
import { wholeNumber } from '../arguments.ts';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';

const views = z.array(anaView);

function show(context: CliContext, all: z.output<typeof views>): void {
  if (all.length === 0) {
    context.print('Every group is optimized at every port, and has no namespace.');
    return;
  }
  context.print(
    plainTable(
      ['subsystem', 'port', 'group', 'state', 'namespaces'],
      all.map(({ subsystemNqn, port, group, state, nsids }) => [
        subsystemNqn,
        port,
        String(group),
        state,
        nsids.join(', '),
      ]),
    ),
  );
}

interface SetFlags extends SharedFlags {
  readonly group: number;
  readonly port?: string;
}

const group = wholeNumber(1, ANA_GROUP_MAX);

export const anaCommand: SubCommand = {
  name: 'ana',
  define(command, context) {
    command
      .summary('say which way hosts take to the namespaces of a running target')
      .description(
        'Asymmetric namespace access: the state of each ANA group at each port. Hosts with several paths take optimized ones first, ' +
          'then non-optimized ones; the other states refuse I/O, which hosts repeat elsewhere. A command ends when the state holds for all ' +
          'I/O: what began before is finished.',
      );
    verb(command, 'list [nqn]', 'Show the states').action(
      (nqn: string | undefined, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'ana.list',
          params: nqn === undefined ? {} : { nqn },
          result: views,
          show,
        }),
    );
    verb(command, 'set <nqn> <state>', `Set a state: ${ANA_STATE_NAMES.join(', ')}`)
      .addOption(new Option('--group <n>', 'ANA group').argParser(group).default(1))
      .option('--port <address:port>', 'at this port of the target (default: at all)')
      .action((nqn: string, state: string, flags: SetFlags) =>
        perform(context, flags, {
          method: 'ana.set',
          params: {
            nqn,
            state,
            group: flags.group,
            ...(flags.port === undefined ? {} : { port: flags.port }),
          },
          result: views,
          show,
        }),
      );
    verb(command, 'move <nqn> <nsid> <group>', 'Move a namespace to another group').action(
      (nqn: string, nsid: string, to: string, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'ana.move',
          params: { nqn, nsid: wholeNumber(1)(nsid), group: group(to) },
          result: views,
          show,
        }),
    );
    addExamples(command, [
      ['what hosts see', 'nvmeof ana list --json'],
      ['hosts shall leave a port', 'nvmeof ana set NQN inaccessible --port 192.0.2.7:4420'],
      ['and may come back', 'nvmeof ana set NQN optimized --port 192.0.2.7:4420'],
    ]);
  },
};
