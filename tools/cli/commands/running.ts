/** `nvmeof status`, `log`, `drain`, `resume`, `stop`: a running target as a whole. */
import { Argument } from 'commander';
import { z } from 'zod';
import { done } from '../../../target/control/schemas.ts';
import { seconds } from '../arguments.ts';
import { addSharedOptions, perform } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { LOG_LEVELS } from '../logging.ts';
import { properties } from '../tables.ts';

interface DrainFlags extends SharedFlags {
  readonly wait: number;
}

const status = z.record(z.string(), z.union([z.string(), z.number(), z.null()]));
const level = z.object({ level: z.string() });

export const statusCommand: SubCommand = {
  name: 'status',
  define(command, context) {
    addSharedOptions(command)
      .summary('show whether a target runs, and what it has')
      .description('Shows version, process and state of a running target, and how much it has.')
      .action((flags: SharedFlags) =>
        perform(context, flags, {
          method: 'target.status',
          params: {},
          result: status,
          show: (_, all) => {
            context.print(
              properties(Object.entries(all).map(([name, value]) => [name, String(value ?? '-')])),
            );
          },
        }),
      );
    addExamples(command, [
      ['is it there?', 'nvmeof status'],
      ['for scripts', 'nvmeof status --json'],
    ]);
  },
};

export const logCommand: SubCommand = {
  name: 'log',
  define(command, context) {
    addSharedOptions(command)
      .summary('show or set the log level of a running target')
      .description('Shows the log level of a running target, or sets it until the target ends.')
      .addArgument(new Argument('[level]', 'from now on').choices([...LOG_LEVELS]))
      .action((wanted: string | undefined, flags: SharedFlags) =>
        perform(context, flags, {
          method: wanted === undefined ? 'log.get' : 'log.set',
          params: wanted === undefined ? {} : { level: wanted },
          result: level,
          show: (_, now) => {
            context.print(now.level);
          },
        }),
      );
    addExamples(command, [
      ['every refused command with its reason', 'nvmeof log debug'],
      ['which it is', 'nvmeof log'],
    ]);
  },
};

export const drainCommand: SubCommand = {
  name: 'drain',
  define(command, context) {
    addSharedOptions(command)
      .summary('take a running target out of service')
      .description(
        'Takes a running target out of service: new associations are refused as busy, discovery shows no subsystem and tells hosts ' +
          'so, and associations that hosts have not ended in the time they are given are ended, each after its I/O in flight. The target ' +
          'stays; nvmeof resume lets hosts come back.',
      )
      .option('--wait <time>', 'for hosts to leave by themselves (default: 0)', seconds, 0)
      .action((flags: DrainFlags) =>
        perform(context, flags, {
          method: 'target.drain',
          params: { waitMs: flags.wait },
          result: z.object({ left: z.number(), ended: z.number(), drained: z.boolean() }),
          show: (_, { left, ended, drained }) => {
            context.print(`${left} associations left by themselves, ${ended} were ended.`);
            context.print(drained ? 'The target is drained.' : 'It was resumed meanwhile.');
          },
        }),
      );
    addExamples(command, [
      ['now', 'nvmeof drain'],
      ['when hosts have had a minute, then the end', 'nvmeof drain --wait 60s && nvmeof stop'],
    ]);
  },
};

export const resumeCommand: SubCommand = {
  name: 'resume',
  define(command, context) {
    addSharedOptions(command)
      .summary('let hosts connect again after drain')
      .description('Lets hosts connect again to a target that was drained.')
      .action((flags: SharedFlags) =>
        perform(context, flags, {
          method: 'target.resume',
          params: {},
          result: done,
          show: () => {
            context.print('Hosts may connect.');
          },
        }),
      );
    addExamples(command, [['back in service', 'nvmeof resume']]);
  },
};

export const stopCommand: SubCommand = {
  name: 'stop',
  define(command, context) {
    addSharedOptions(command)
      .summary('end a running target')
      .description(
        'Ends a running target as SIGTERM does: I/O in flight is finished first. The command ends when all is closed.',
      )
      .action((flags: SharedFlags) =>
        perform(context, flags, {
          method: 'target.stop',
          params: {},
          result: done,
          show: () => {
            context.print('Stopped.');
          },
        }),
      );
    addExamples(command, [
      ['the one that runs', 'nvmeof stop'],
      ['one of several', 'nvmeof stop --socket /run/nvmeof/second.sock'],
    ]);
  },
};
