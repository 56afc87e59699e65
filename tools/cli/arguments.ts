/**
 * Arguments and options that several sub-commands share, and their parsers. A parser throws commander's
 * InvalidArgumentError, so that the message names the option.
 */
import { InvalidArgumentError, Option } from 'commander';
import type { Command } from 'commander';
import { QUEUE_COUNT_MAX, connect } from '../../initiator/index.ts';
import type { ConnectOptions, Controller, TransportOptions } from '../../initiator/index.ts';
import { formatAddress, parseEndpoint } from '../../native/common/address.ts';
import { messageOf } from '../../native/common/errors.ts';
import { parseSize } from '../../native/common/size.ts';
import { NVME_RDMA_PORT } from '../../native/wire/fabrics.ts';
import type { CliContext } from './context.ts';

function orInvalid<T>(parse: () => T): T {
  try {
    return parse();
  } catch (error) {
    throw new InvalidArgumentError(messageOf(error));
  }
}

export interface HostPort {
  readonly address: string;
  readonly port: number;
}

/** Where `--metrics` and `nvmeof stats` meet. */
export const METRICS_PORT = 9420;

/** ADDRESS[:PORT], IPv6 with a port in brackets. */
function endpointParser(defaultPort: number) {
  return (text: string): HostPort =>
    orInvalid(() => {
      const { address, port } = parseEndpoint(text, defaultPort);
      return { address: formatAddress(address), port };
    });
}

export const hostPort = endpointParser(NVME_RDMA_PORT);

/** Where a target listens, and the cores of its queues there. */
export interface ListenPort extends HostPort {
  /** Absent: all of the target. */
  readonly cores?: number[];
}

/** ADDRESS[:PORT][@CORES]; the last @ counts. */
export function listenPort(text: string): ListenPort {
  const at = text.lastIndexOf('@');
  if (at < 0) return hostPort(text);
  const cores = coreList(text.slice(at + 1));
  if (cores.includes(-1)) throw new InvalidArgumentError('Write cores behind @ as 0,1 or 0-3.');
  return { ...hostPort(text.slice(0, at)), cores };
}
export const metricsEndpoint = endpointParser(METRICS_PORT);

export function size(text: string): bigint {
  return orInvalid(() => parseSize(text));
}

/** A size that must fit memory or a counter of JavaScript. */
export function byteCount(text: string): number {
  const bytes = size(text);
  if (bytes > BigInt(Number.MAX_SAFE_INTEGER)) throw new InvalidArgumentError('That is too large.');
  return Number(bytes);
}

export function wholeNumber(low: number, high = Number.MAX_SAFE_INTEGER) {
  return (text: string): number => {
    const value = Number(text);
    if (!/^\d+$/.test(text) || value < low || value > high) {
      throw new InvalidArgumentError(
        `It must be a whole number from ${low}${high === Number.MAX_SAFE_INTEGER ? '' : ` to ${high}`}.`,
      );
    }
    return value;
  };
}

/** "0,1,4-7": cores; -1 alone: one reactor that is not pinned. */
export function coreList(text: string): number[] {
  if (text === '-1') return [-1];
  const cores = text.split(',').flatMap((part) => {
    const [, first, last] = /^(\d+)(?:-(\d+))?$/.exec(part.trim()) ?? [];
    if (first === undefined) {
      throw new InvalidArgumentError('Write cores as 0,1 or 0-3.');
    }
    const from = Number(first);
    const to = last === undefined ? from : Number(last);
    if (to < from || to > 4095) throw new InvalidArgumentError(`${part} is no range of cores.`);
    return Array.from({ length: to - from + 1 }, (_, index) => from + index);
  });
  if (new Set(cores).size !== cores.length) {
    throw new InvalidArgumentError('A core is named twice.');
  }
  return cores;
}

/** Milliseconds, or with a unit: 250ms, 5s, 2m. */
export function milliseconds(text: string): number {
  const [, digits, unit] = /^(\d+(?:\.\d+)?)(ms|s|m)?$/.exec(text) ?? [];
  if (digits === undefined) throw new InvalidArgumentError('Write a time as 500ms, 5s or 2m.');
  const factors: Readonly<Record<string, number>> = { ms: 1, s: 1000, m: 60_000 };
  return Math.round(Number(digits) * (factors[unit ?? 'ms'] ?? 1));
}

/** fio's way: seconds when no unit is given. */
export function seconds(text: string): number {
  return milliseconds(/^\d+(\.\d+)?$/.test(text) ? `${text}s` : text);
}

export function icrcOption(): Option {
  return new Option(
    '--icrc <check>',
    'ICRC check of IPv4 packets; full needs CAP_NET_RAW (default: recovered)',
  ).choices(['recovered', 'full']);
}

export function socketBufferOption(): Option {
  return new Option(
    '--socket-buffer <size>',
    "asked for each of soft's sockets; the kernel may grant less (default: 4MiB)",
  ).argParser((text) => {
    const bytes = byteCount(text);
    if (bytes < 4096 || bytes > 1 << 30) {
      throw new InvalidArgumentError('It must be 4KiB to 1GiB.');
    }
    return bytes;
  });
}

/** Options of everything that connects. */
export interface TransportFlags {
  readonly from?: string;
  readonly provider?: 'auto' | 'soft' | 'verbs';
  readonly mtu?: number;
  readonly icrc?: 'recovered' | 'full';
  readonly socketBuffer?: number;
  readonly pcap?: string;
  readonly cores?: number[];
  readonly poll?: boolean;
  readonly hostNqn?: string;
  readonly hostId?: string;
  readonly connectTimeout?: number;
  readonly ackTimeout?: number;
}

export function addTransportOptions(command: Command): Command {
  return command
    .option(
      '--from <address>',
      'our own address (default: the one of the route; to IPv4 loopback a random free 127.x.y.z)',
    )
    .option(
      '--provider <name>',
      'auto (verbs where an RDMA device owns our address, else soft), soft or verbs',
      'auto',
    )
    .option('--mtu <bytes>', 'path MTU: 256, 512, 1024, 2048 or 4096', wholeNumber(256, 4096))
    .addOption(icrcOption())
    .addOption(socketBufferOption())
    .option('--pcap <file>', 'write every packet to a file for Wireshark')
    .option(
      '--cores <list>',
      'cores of the reactors, such as 0,1 (default: one, not pinned)',
      coreList,
    )
    .option('--poll', 'never sleep: lowest latency, whole cores')
    .option('--host-nqn <nqn>', 'who we say we are (default: /etc/nvme/hostnqn, or made once)')
    .option('--host-id <uuid>', 'host identifier (default: belongs to the host NQN)')
    .option('--connect-timeout <time>', 'for each connection (default 5s)', milliseconds)
    .option(
      '--ack-timeout <time>',
      'until a packet is sent again; a silent target is given up after 21 times that (default: 67ms)',
      milliseconds,
    );
}

type Given<T> = { [Key in keyof T]?: Exclude<T[Key], undefined> };

/** Without the options that were left out. */
export function given<T extends object>(options: T): Given<T> {
  const entries = Object.entries(options).filter(([, value]) => value !== undefined);
  return Object.fromEntries(entries) as Given<T>;
}

export function transportOptions(target: HostPort, flags: TransportFlags): TransportOptions {
  const optional = {
    sourceAddress: flags.from,
    provider: flags.provider,
    pathMtu: flags.mtu,
    icrc: flags.icrc,
    socketBufferBytes: flags.socketBuffer,
    pcapPath: flags.pcap,
    cores: flags.cores,
    pollForever: flags.poll,
    hostNqn: flags.hostNqn,
    hostId: flags.hostId,
    connectTimeoutMs: flags.connectTimeout,
    ackTimeoutMs: flags.ackTimeout,
  };
  return { ...target, ...given(optional) };
}

/** Options of everything that connects to a subsystem. */
export interface ConnectFlags extends TransportFlags {
  /** Either name. */
  readonly nrIoQueues?: number;
  readonly queues?: number;
  readonly depth?: number;
  /** Either name. */
  readonly keepAliveTmo?: number;
  readonly keepAlive?: number;
  readonly commandTimeout?: number;
}

/** The keep alive timeout is named, and counted, as nvme-cli does it, and shorter. */
export function addConnectOptions(command: Command): Command {
  return addTransportOptions(command)
    .addOption(
      new Option('--keep-alive-tmo <time>', 'keep alive timeout, in seconds; 0: off (default 5)')
        .argParser(seconds)
        .conflicts('keepAlive'),
    )
    .option('--keep-alive <time>', 'the same, in milliseconds or with a unit', milliseconds)
    .option('--command-timeout <time>', 'for each command, 0: none (default 30s)', milliseconds);
}

export function nsidOption(): Option {
  return new Option('--nsid <n>', 'namespace').argParser(wholeNumber(1, 0xffff_fffe)).default(1);
}

export function depthOption(): Option {
  return new Option('--depth <n>', 'entries of each queue (default: 128)').argParser(
    wholeNumber(2, 1024),
  );
}

/** Named as nvme-cli names it, and shorter. */
export function addQueuesOption(command: Command): Command {
  const count = wholeNumber(1, QUEUE_COUNT_MAX);
  return command
    .addOption(
      new Option('-i, --nr-io-queues <n>', 'I/O queues to ask for (default: one per reactor)')
        .argParser(count)
        .conflicts('queues'),
    )
    .addOption(new Option('--queues <n>', 'the same').argParser(count));
}

interface QueueCount {
  readonly queues: readonly unknown[] | number;
  readonly queuesAsked: number;
}

/** A controller with fewer queues than wanted is slower, and works. */
export function noteQueues(
  context: Pick<CliContext, 'note'>,
  { queues, queuesAsked }: QueueCount,
): void {
  const granted = typeof queues === 'number' ? queues : queues.length;
  if (granted >= queuesAsked) return;
  context.note(
    `The target grants ${granted} of ${queuesAsked} I/O queues: raise what it grants (maxQueues of its port), ` +
      `or ask for no more (--nr-io-queues ${granted}).`,
  );
}

export function connectOptions(target: HostPort, nqn: string, flags: ConnectFlags): ConnectOptions {
  const queues = flags.nrIoQueues ?? flags.queues;
  const keepAliveMs = flags.keepAliveTmo ?? flags.keepAlive;
  return {
    ...transportOptions(target, flags),
    nqn,
    ...(queues === undefined ? {} : { queues }),
    ...(flags.depth === undefined ? {} : { depth: flags.depth }),
    ...(keepAliveMs === undefined ? {} : { keepAliveMs }),
    ...(flags.commandTimeout === undefined ? {} : { commandTimeoutMs: flags.commandTimeout }),
  };
}

/** Connects, runs, and disconnects whatever happens. */
export async function withController<T>(
  options: ConnectOptions,
  run: (controller: Controller) => Promise<T>,
): Promise<T> {
  const controller = await connect(options);
  try {
    return await run(controller);
  } finally {
    await controller.disconnect();
  }
}
