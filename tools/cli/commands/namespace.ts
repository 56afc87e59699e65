/** `nvmeof namespace`: namespaces of a running target. */
import { Argument } from 'commander';
import type { Command } from 'commander';
import { z } from 'zod';
import { formatSize } from '../../../native/common/size.ts';
import { done, namespaceView } from '../../../target/control/schemas.ts';
import { size, wholeNumber } from '../arguments.ts';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';
import { namespaceOf } from './subsystem.ts';

type View = z.output<typeof namespaceView>;

const NSID_MAX = 4096;
const nsidArgument = (): Argument =>
  new Argument('<nsid>', 'of the namespace').argParser(wholeNumber(1, NSID_MAX));

function stateOf({ enabled, readOnly, writeProtected }: View): string {
  if (!enabled) return 'disabled';
  if (readOnly) return 'read-only';
  return writeProtected ? 'write-protected' : 'read-write';
}

function row(view: View): string[] {
  const { nsid, source, enabled, size: bytes, blockSize, uuid } = view;
  const shown = enabled ? formatSize(BigInt(bytes)) : '-';
  return [String(nsid), shown, String(blockSize), stateOf(view), source, uuid];
}

const HEAD = ['nsid', 'size', 'block', 'state', 'source', 'uuid'];

function showOne(context: CliContext, view: View): void {
  context.print(plainTable(HEAD, [row(view)]));
}

/** Verbs that take a namespace and nothing else. */
const PLAIN: readonly (readonly [name: string, summary: string])[] = [
  ['enable', 'Open a namespace that is disabled, and show it to hosts'],
  ['disable', 'Hide a namespace from hosts, and close its file'],
];

/** Size and write protection. */
function addSettings(command: Command, context: CliContext): void {
  verb(
    command,
    'resize <nqn>',
    'Grow or shrink a namespace; a file is grown where it is too small, and never cut',
  )
    .addArgument(nsidArgument())
    .addArgument(new Argument('<size>', 'bytes, or with a unit: 2GiB').argParser(size))
    .action((nqn: string, nsid: number, bytes: bigint, flags: SharedFlags) =>
      perform(context, flags, {
        method: 'namespace.resize',
        params: { nqn, nsid, size: bytes },
        result: namespaceView,
        show: showOne,
      }),
    );
  verb(command, 'protect <nqn>', 'Refuse writes of hosts, or take them again')
    .addArgument(nsidArgument())
    .addArgument(new Argument('[state]', 'of the protection').choices(['on', 'off']).default('on'))
    .action((nqn: string, nsid: number, state: string, flags: SharedFlags) =>
      perform(context, flags, {
        method: 'namespace.protect',
        params: { nqn, nsid, writeProtected: state === 'on' },
        result: namespaceView,
        show: showOne,
      }),
    );
}

export const namespaceCommand: SubCommand = {
  name: 'namespace',
  define(command, context) {
    command
      .summary('list, add, remove, resize and protect namespaces of a running target')
      .description(
        'Namespaces of a running target. A change is told to every host that is attached, and holds for all I/O when the ' +
          'command ends.',
      );
    verb(command, 'list <nqn>', 'List the namespaces of a subsystem').action(
      (nqn: string, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'namespace.list',
          params: { nqn },
          result: z.array(namespaceView),
          show: (_, all) => {
            context.print(
              all.length === 0 ? 'It has no namespace.' : plainTable(HEAD, all.map(row)),
            );
          },
        }),
    );
    verb(
      command,
      'add <nqn> <export>',
      'Add a namespace: PATH, memory:SIZE or null:SIZE, with options as nvmeof target takes them',
    ).action((nqn: string, text: string, flags: SharedFlags) =>
      perform(context, flags, {
        method: 'namespace.add',
        params: { nqn, namespace: namespaceOf(text) },
        result: namespaceView,
        show: showOne,
      }),
    );
    verb(command, 'remove <nqn>', 'Remove a namespace; its I/O in flight ends first')
      .addArgument(nsidArgument())
      .action((nqn: string, nsid: number, flags: SharedFlags) =>
        perform(context, flags, {
          method: 'namespace.remove',
          params: { nqn, nsid },
          result: done,
          show: () => {
            context.print(`Removed namespace ${nsid} of ${nqn}.`);
          },
        }),
      );
    for (const [name, summary] of PLAIN) {
      verb(command, `${name} <nqn>`, summary)
        .addArgument(nsidArgument())
        .action((nqn: string, nsid: number, flags: SharedFlags) =>
          perform(context, flags, {
            method: `namespace.${name}`,
            params: { nqn, nsid },
            result: namespaceView,
            show: showOne,
          }),
        );
    }
    addSettings(command, context);
    addExamples(command, [
      ['what a subsystem shows', 'nvmeof namespace list NQN --json'],
      ['one more', 'nvmeof namespace add NQN /srv/disk.img,bs=4096'],
      ['twice as large', 'nvmeof namespace resize NQN 2 2GiB'],
      ['no writes for now', 'nvmeof namespace protect NQN 2 on'],
    ]);
  },
};
