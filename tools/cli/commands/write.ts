/** `nvmeof write ADDRESS NQN`: bytes of a file or of stdin to a namespace. */
import { createReadStream } from 'node:fs';
import { stat } from 'node:fs/promises';
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
import { copyIn, rangeIn } from '../copy.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { startProgress } from '../progress.ts';

interface Flags extends ConnectFlags {
  readonly nsid: number;
  readonly offset: bigint;
  readonly length?: bigint;
  readonly input?: string;
  readonly fua?: boolean;
  readonly flush: boolean;
  readonly json?: boolean;
}

/** Bytes that will be copied where that is known: for the progress bar. */
async function expectedBytes(flags: Flags): Promise<number> {
  if (flags.length !== undefined) return Number(flags.length);
  if (flags.input === undefined) return 0;
  const found = await stat(flags.input);
  return found.isFile() ? found.size : 0;
}

export const writeCommand: SubCommand = {
  name: 'write',
  define(command, context) {
    const { streams } = context;
    addConnectOptions(command)
      .summary('copy bytes into a namespace')
      .description(
        'Copies a file, or standard input, into a namespace, and flushes it. Bytes around a range that does ' +
          'not begin and end on blocks are kept.',
      )
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .addOption(nsidOption())
      .addOption(
        new Option('--offset <size>', 'first byte, with units: 4k, 1MiB')
          .argParser(size)
          .default(0n, '0'),
      )
      .option('--length <size>', 'at most this many bytes (default: all of the input)', size)
      .option('-i, --input <file>', 'read from a file (default: standard input)')
      .option('--fua', 'Force Unit Access: each write reaches stable storage before it is answered')
      .option('--no-flush', 'no Flush at the end')
      .option('--json', 'print what was done as JSON')
      .action(async (target: HostPort, nqn: string, flags: Flags) => {
        const total = await expectedBytes(flags);
        await withController(connectOptions(target, nqn, flags), async (controller) => {
          const namespace = controller.namespace(flags.nsid);
          rangeIn(namespace, flags.offset, flags.length ?? BigInt(total));
          if (namespace.writeProtected) {
            throw new CliError(ExitCode.failed, `namespace ${flags.nsid} is write protected`);
          }
          const source = flags.input === undefined ? streams.stdin : createReadStream(flags.input);
          const progress = startProgress(streams, 'write', total);
          let written: bigint;
          try {
            const { offset, length } = flags;
            const options = { offset, length, fua: flags.fua ?? false };
            written = await copyIn(namespace, source, options, progress);
            if (flags.flush) await namespace.flush();
          } finally {
            progress.end();
            source.destroy();
          }
          if (flags.json === true) {
            context.printJson({ nsid: flags.nsid, offset: flags.offset, length: written });
          }
        });
      });
    addExamples(command, [
      ['restore an image', 'nvmeof write 127.0.0.1 NQN -i disk.img'],
      [
        'a megabyte of random data behind the first',
        'head -c 1M /dev/urandom | nvmeof write 127.0.0.1 NQN --offset 1M',
      ],
    ]);
  },
};
