/** `nvmeof list-subsys`: the subsystems that running `nvmeof attach` processes are connected to, and their paths. */
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { runningAttaches, statusAt } from '../host/running.ts';
import { statusTree } from '../host/view.ts';

async function list(
  context: CliContext,
  sockets: readonly string[],
  { json }: { readonly json?: boolean },
): Promise<void> {
  const note = (text: string): void => {
    context.note(`nvmeof: ${text}`);
  };
  const running =
    sockets.length > 0 ? await Promise.all(sockets.map(statusAt)) : await runningAttaches(note);
  if (json === true) {
    context.printJson(running.map(({ socket, status }) => ({ socket, ...status })));
    return;
  }
  if (running.length === 0) context.print('No nvmeof attach runs.');
  for (const { status } of running) for (const line of statusTree(status)) context.print(line);
}

export const listSubsysCommand: SubCommand = {
  name: 'list-subsys',
  define(command, context) {
    command
      .summary('show what running attaches are connected to, and over which paths')
      .description(
        'Shows each running nvmeof attach of this machine: its subsystem, the state of each path and why one is not live, its ' +
          'namespaces, and the sockets it serves. Those of other users are shown to root alone.',
      )
      .argument('[socket...]', 'control sockets (default: all where attach opens them)')
      .option('--json', 'print it as JSON')
      .action((sockets: string[], flags: { json?: boolean }) => list(context, sockets, flags));
    addExamples(command, [
      ['all of this machine', 'nvmeof list-subsys'],
      ['one, for scripts', 'nvmeof list-subsys --json /run/nvmeof/disk/attach.sock'],
    ]);
  },
};
