/** `nvmeof read ADDRESS NQN`: bytes of a namespace to a file or to stdout. */
import { createWriteStream } from 'node:fs';
import { finished } from 'node:stream/promises';
import { Option } from 'commander';
import {
  addConnectOptions,
  connectOptions,
  hostPort,
  nsidOption,
  size,
  withController,
} from '../arguments.ts';
import type { ConnectFlags, HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { SubCommand } from '../context.ts';
import { copyOut, rangeIn } from '../copy.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { startProgress } from '../progress.ts';

interface Flags extends ConnectFlags {
  readonly nsid: number;
  readonly offset: bigint;
  readonly length?: bigint;
  readonly output?: string;
  readonly force?: boolean;
  readonly json?: boolean;
}

export const readCommand: SubCommand = {
  name: 'read',
  define(command, context) {
    const { streams } = context;
    addConnectOptions(command)
      .summary('copy bytes out of a namespace')
      .description('Copies a namespace, or a part of it, to a file or to standard output.')
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .addOption(nsidOption())
      .addOption(
        new Option('--offset <size>', 'first byte, with units: 4k, 1MiB')
          .argParser(size)
          .default(0n, '0'),
      )
      .option('--length <size>', 'bytes (default: to the end)', size)
      .option('-o, --output <file>', 'write to a file (default: standard output)')
      .option('--force', 'write binary data to a terminal')
      .option('--json', 'print what was done as JSON (with --output)')
      .action(async (target: HostPort, nqn: string, flags: Flags) => {
        if (flags.output === undefined && streams.stdout.isTTY === true && flags.force !== true) {
          throw new CliError(ExitCode.usage, 'standard output is a terminal', {
            remedy: 'name a file with --output, use a pipe, or say --force',
          });
        }
        await withController(connectOptions(target, nqn, flags), async (controller) => {
          const namespace = controller.namespace(flags.nsid);
          const range = rangeIn(namespace, flags.offset, flags.length);
          const file = flags.output === undefined ? undefined : createWriteStream(flags.output);
          const written = file && finished(file);
          written?.catch(() => undefined);
          const progress = startProgress(streams, 'read ', Number(range.length));
          try {
            const copied = copyOut(controller, namespace, range, file ?? streams.stdout, progress);
            // A file that cannot be written ends the copy at once.
            await (written ? Promise.race([copied, written.then(() => copied)]) : copied);
            file?.end();
            await written;
          } finally {
            progress.end();
            file?.destroy();
          }
          if (flags.json === true && flags.output !== undefined) {
            context.printJson({ nsid: flags.nsid, ...range, output: flags.output });
          }
        });
      });
    addExamples(command, [
      ['a whole namespace', 'nvmeof read 127.0.0.1 NQN -o disk.img'],
      ['its first megabyte', 'nvmeof read 127.0.0.1 NQN --length 1MiB | hexdump -C | less'],
    ]);
  },
};
