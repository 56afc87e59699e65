/**
 * `nvmeof attach ADDRESS NQN`: keeps a namespace connected, over one path or several, in the foreground, and lets other
 * processes use it. It ends by a signal, or when every path has been given up.
 */
import { resolve } from 'node:path';
import { connectPaths } from '../../../initiator/index.ts';
import type { Attachment, MultipathSubsystem, Namespace } from '../../../initiator/index.ts';
import type { ControlServer } from '../../../target/index.ts';
import { messageOf } from '../../../native/common/errors.ts';
import { formatSize } from '../../../native/common/size.ts';
import {
  addConnectOptions,
  addQueuesOption,
  depthOption,
  hostPort,
  noteQueues,
  nsidOption,
} from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { openHostControl } from '../host/control.ts';
import {
  addMultipathOptions,
  multipathOptions,
  notePaths,
  untilGivenUp,
} from '../multipath-options.ts';
import type { MultipathFlags } from '../multipath-options.ts';
import { untilSignal } from '../signals.ts';
import { version } from '../version.ts';

export interface AttachFlags extends MultipathFlags {
  readonly nsid: number;
  readonly nbd?: string;
  readonly socket?: string;
  readonly control?: string | false;
  readonly json?: boolean;
}

/** Entries of each queue unless told. */
const DEPTH = 128;

/** Ways for other processes to use the namespace; at least one is needed. */
const WAYS = '--nbd SOCKET, --socket SOCKET or both';

/** A word of a shell's command line. */
function quoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

/** What reaches a socket: command lines for a person to copy. */
export function nbdCommands(socket: string, lbaSize: number, queues: number): string[] {
  const path = socket.split('/').map(encodeURIComponent).join('/');
  const uri = quoted(`nbd+unix:///?socket=${path}`);
  const several = queues > 1 ? ` -connections ${queues}` : '';
  return [
    `nbd-client -unix ${quoted(socket)} /dev/nbd0 -block-size ${lbaSize}${several}`,
    `qemu-img info ${uri}`,
    `fio --name=nbd --ioengine=nbd --uri=${uri} --rw=randread --bs=4k --iodepth=32`,
  ];
}

/** One way in, as it is shown to people and in JSON. */
interface Served {
  readonly way: 'nbd' | 'socket';
  readonly clients: string;
  readonly socket: string;
  readonly commands: readonly string[];
}

/** Opens the sockets that were asked for. */
function serve(
  attachment: Attachment,
  { nbd, socket }: AttachFlags,
  lbaSize: number,
  queues: number,
): Served[] {
  const served: Served[] = [];
  if (nbd !== undefined) {
    const path = resolve(nbd);
    attachment.serveNbd(path);
    const commands = nbdCommands(path, lbaSize, queues);
    served.push({ way: 'nbd', clients: 'NBD clients', socket: path, commands });
  }
  if (socket !== undefined) {
    const path = resolve(socket);
    attachment.serveClients(path);
    const commands = [`nvmeof fio --socket ${quoted(path)} randread-4k-qd32`];
    served.push({ way: 'socket', clients: 'fio and native/client', socket: path, commands });
  }
  return served;
}

function describe(subsystem: MultipathSubsystem, namespace: Namespace, depth: number): string {
  const live = subsystem.paths.filter(({ state }) => state === 'live');
  const queues = Math.max(...live.map((path) => path.queues));
  return (
    `Attached ${subsystem.nqn} namespace ${namespace.nsid} of ${live.map(({ endpoint }) => endpoint).join(', ')}: ` +
    `${formatSize(namespace.bytes)} (${namespace.bytes} bytes), blocks of ${namespace.lbaSize} bytes` +
    `${namespace.writeProtected ? ', read-only' : ''}; ` +
    `${queues} ${queues === 1 ? 'queue' : 'queues'} of ${depth - 1} commands`
  );
}

/** Rejects when the namespace is no longer there to be used. */
function untilLost(
  context: CliContext,
  subsystem: MultipathSubsystem,
  nsid: number,
): Promise<never> {
  const removed = new Promise<never>((_, reject) => {
    subsystem.on('namespacesChanged', (change) => {
      if (change.removed.includes(nsid)) {
        reject(new CliError(ExitCode.disconnected, `the target removed namespace ${nsid}`));
      } else if (change.changed.includes(nsid)) {
        context.note(
          `nvmeof: namespace ${nsid} has changed; clients see the new size after attach is started anew`,
        );
      }
    });
  });
  const givenUp = untilGivenUp(subsystem).catch((error: unknown) => {
    throw new CliError(ExitCode.disconnected, messageOf(error));
  });
  return Promise.race([removed, givenUp]);
}

async function attach(
  context: CliContext,
  target: HostPort,
  nqn: string,
  flags: AttachFlags,
): Promise<void> {
  if (flags.nbd === undefined && flags.socket === undefined) {
    throw new CliError(ExitCode.usage, 'nothing says how other processes shall use the namespace', {
      remedy: `give ${WAYS}; see nvmeof attach --help`,
    });
  }
  const signal = untilSignal();
  const subsystem = await connectPaths(multipathOptions(target, nqn, flags));
  let control: ControlServer | undefined;
  try {
    for (const path of subsystem.paths) noteQueues(context, path);
    const namespace = subsystem.namespace(flags.nsid);
    notePaths(context, subsystem);
    const lost = untilLost(context, subsystem, flags.nsid);
    const attachment = subsystem.attach(flags.nsid);
    const queues = Math.max(...subsystem.paths.map((path) => path.queues));
    const served = serve(attachment, flags, namespace.lbaSize, queues);
    control = await openHostControl(context, flags.control, {
      subsystem,
      served: served.map(({ way, socket }) => ({ nsid: flags.nsid, way, socket })),
      version: version(),
      sourceAddress: flags.from,
    });
    if (flags.json === true) {
      const { nsid, bytes, lbaSize, writeProtected } = namespace;
      const { paths } = subsystem;
      const socket = control?.path ?? null;
      context.printJson({
        ...{ nqn, nsid, bytes, lbaSize, writeProtected, paths, served, control: socket },
      });
    } else {
      context.print(`${describe(subsystem, namespace, flags.depth ?? DEPTH)}.`);
      for (const { clients, socket, commands } of served) {
        context.print(`${clients} find it at ${socket}:`);
        for (const line of commands) context.print(`  ${line}`);
      }
      context.print('Stop with Ctrl-C or SIGTERM.');
    }
    context.note(`nvmeof: ${await Promise.race([signal, lost])}, detaching`);
  } finally {
    await subsystem.disconnect();
    // What was asked has ended with the paths.
    await control?.close();
  }
}

export const attachCommand: SubCommand = {
  name: 'attach',
  define(command, context) {
    addMultipathOptions(addQueuesOption(addConnectOptions(command)))
      .summary('let other processes use a namespace (NBD, fio)')
      .description(
        'Connects to a namespace and lets other processes on this machine use it through this one, in the ' +
          'foreground, until SIGINT or SIGTERM; then clients are hung up on, and their I/O in flight is finished ' +
          'first. A path that is lost is connected again; meanwhile I/O takes another one (--path), or waits. When every ' +
          'path has been given up (--ctrl-loss-tmo), I/O fails, clients are hung up on, and the command ends.\n\n' +
          'With --nbd, the clients are those of the Network Block Device protocol: the kernel (nbd-client), ' +
          'QEMU, nbdcopy, fio. With --socket, they are programs with the C library of native/client, over shared memory: ' +
          "fio's engine (nvmeof fio). The sockets belong to the user alone (mode 0600).",
      )
      .argument('<address[:port]>', 'of the target', hostPort)
      .argument('<nqn>', 'of the subsystem')
      .addOption(nsidOption())
      .option('--nbd <socket>', 'serve NBD clients on this Unix socket')
      .option('--socket <socket>', 'serve clients over shared memory on this one')
      .addOption(depthOption())
      .option(
        '--control <path>',
        'socket for nvmeof list-subsys and path (default: /run/nvmeof/attach-PID.sock for root, else ' +
          '$XDG_RUNTIME_DIR/nvmeof/attach-PID.sock)',
      )
      .option('--no-control', 'no such socket')
      .option('--json', 'print what is attached as JSON')
      .action((target: HostPort, nqn: string, flags: AttachFlags) =>
        attach(context, target, nqn, flags),
      );
    addExamples(command, [
      ['serve a namespace to NBD clients', 'nvmeof attach 127.0.0.1 NQN --nbd /tmp/nbd.sock'],
      [
        'two cores, a queue on each',
        'nvmeof attach 192.0.2.1 NQN --nsid 2 --nbd /run/nbd.sock --cores 0,1',
      ],
      [
        'two paths: I/O survives the loss of one',
        'nvmeof attach 192.0.2.1 NQN --path 192.0.2.129 --nbd /run/nbd.sock',
      ],
      ['for fio, over shared memory', 'nvmeof attach 127.0.0.1 NQN --socket /tmp/disk.sock'],
      ['as a block device of the kernel', 'nbd-client -unix /tmp/nbd.sock /dev/nbd0'],
      ['copy it to a file', "nbdcopy 'nbd+unix:///?socket=/tmp/nbd.sock' disk.img"],
    ]);
  },
};
