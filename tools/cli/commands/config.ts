/** `nvmeof config`: the configuration of a running target, shown, saved, and read again. */
import { resolve } from 'node:path';
import { z } from 'zod';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';

export const configCommand: SubCommand = {
  name: 'config',
  define(command, context) {
    command
      .summary('show, save and reload the configuration of a running target')
      .description(
        'The configuration of a running target as it is now, changes included. A target that is started with the saved file is ' +
          'the same, with the same identities.',
      );
    verb(command, 'show', 'Print the configuration as a file would have it').action(
      (flags: SharedFlags) =>
        perform(context, flags, {
          method: 'config.get',
          params: {},
          result: z.unknown(),
          show: (_, config) => {
            context.printJson(config);
          },
        }),
    );
    verb(
      command,
      'save [file]',
      'Write it to a file (default: the one that the target was started with)',
    ).action((file: string | undefined, flags: SharedFlags) =>
      perform(context, flags, {
        method: 'config.save',
        params: file === undefined ? {} : { path: resolve(file) },
        result: z.object({ path: z.string() }),
        show: (_, { path }) => {
          context.print(`Saved to ${path}.`);
        },
      }),
    );
    verb(
      command,
      'reload',
      'Read the file of the target again, and apply what differs; on an error nothing changes',
    ).action((flags: SharedFlags) =>
      perform(context, flags, {
        method: 'config.reload',
        params: {},
        result: z.object({ changes: z.array(z.string()) }),
        show: (_, { changes }) => {
          if (changes.length === 0) context.print('Nothing differs.');
          for (const change of changes) context.print(change);
        },
      }),
    );
    addExamples(command, [
      ['as it is now', 'nvmeof config show --json'],
      ['keep it over restarts', 'nvmeof config save'],
      ['the file was edited', 'nvmeof config reload'],
    ]);
  },
};
