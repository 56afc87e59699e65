/**
 * `nvmeof target`: exports files and devices in the foreground until a signal ends it. What it serves is decided by
 * target/; here the command line becomes a configuration. What happens while it runs is logged by target/.
 */
import { hostname } from 'node:os';
import { Option } from 'commander';
import { Target, loadConfig, parseConfig, parseExport } from '../../../target/index.ts';
import type { ControlServer, TargetConfig, TargetOptions } from '../../../target/index.ts';
import { formatEndpoint, parseAddress } from '../../../native/common/address.ts';
import { nonZero } from '../../../native/common/counters.ts';
import { formatSize } from '../../../native/common/size.ts';
import {
  coreList,
  icrcOption,
  listenPort,
  metricsEndpoint,
  METRICS_PORT,
  socketBufferOption,
  wholeNumber,
} from '../arguments.ts';
import type { HostPort, ListenPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';
import { ServiceManager } from '../service-manager.ts';
import { untilSignal } from '../signals.ts';
import { StatisticsServer } from '../statistics/server.ts';
import { LOG_LEVELS, makeLogger } from '../logging.ts';
import { requireParent, serveParent } from '../target-channel.ts';
import type { LogLevel } from '../logging.ts';
import { TargetService } from '../target-service.ts';

export interface TargetFlags {
  readonly config?: string;
  readonly export?: readonly string[];
  readonly nqn?: string;
  readonly listen?: readonly ListenPort[];
  readonly allow?: readonly string[];
  readonly cores?: number[];
  readonly poll?: boolean;
  readonly provider?: 'auto' | 'soft' | 'verbs';
  readonly mtu?: 256 | 512 | 1024 | 2048 | 4096;
  readonly icrc?: 'recovered' | 'full';
  readonly socketBuffer?: number;
  readonly pcap?: string;
  readonly log: LogLevel;
  readonly metrics?: HostPort;
  readonly control?: string | false;
  readonly json?: boolean;
  readonly injectFaults?: boolean;
}

const DEFAULT_LISTEN: ListenPort = { address: '127.0.0.1', port: 4420 };

/** NQNs take letters, digits and hyphens in this place. */
export function defaultNqn(host = hostname()): string {
  const name = host.toLowerCase().replace(/[^a-z0-9-]+/g, '-');
  return `nqn.2026-11.io.nvmeof:${name === '' ? 'target' : name}`;
}

/** The short form as a configuration. */
function shortForm(flags: TargetFlags): TargetOptions {
  const exports = (flags.export ?? []).map(parseExport);
  const serials = new Set(exports.flatMap(({ serial }) => (serial === undefined ? [] : [serial])));
  if (serials.size > 1) {
    throw new CliError(
      ExitCode.usage,
      `serial numbers ${[...serials].join(' and ')} for one subsystem: all exports share one`,
    );
  }
  const [serial] = serials;
  const ports = flags.listen ?? [DEFAULT_LISTEN];
  return {
    ports: [...ports],
    subsystems: [
      {
        nqn: flags.nqn ?? defaultNqn(),
        namespaces: exports.map(({ namespace }) => namespace),
        hosts: [...(flags.allow ?? [])],
        ...(serial === undefined ? {} : { serial }),
      },
    ],
  };
}

/** Flags that also go on top of a configuration file. */
function overrides(flags: TargetFlags): Partial<TargetOptions> {
  return {
    ...(flags.cores === undefined ? {} : { cores: flags.cores }),
    ...(flags.poll === undefined ? {} : { pollForever: flags.poll }),
    ...(flags.provider === undefined ? {} : { provider: flags.provider }),
    ...(flags.mtu === undefined ? {} : { mtu: flags.mtu }),
    ...(flags.icrc === undefined ? {} : { icrc: flags.icrc }),
    ...(flags.socketBuffer === undefined ? {} : { socketBufferBytes: flags.socketBuffer }),
    ...(flags.pcap === undefined ? {} : { pcap: flags.pcap }),
    ...(flags.control === undefined ? {} : { control: flags.control }),
  };
}

export async function targetConfig(flags: TargetFlags): Promise<TargetConfig> {
  if (flags.config === undefined) {
    if (flags.export === undefined) {
      throw new CliError(ExitCode.usage, 'nothing to export', {
        remedy: 'give --export PATH (or memory:1GiB), or --config FILE; see nvmeof target --help',
      });
    }
    return parseConfig({ ...shortForm(flags), ...overrides(flags) }, 'command line');
  }
  if (flags.export ?? flags.listen ?? flags.nqn ?? flags.allow) {
    throw new CliError(
      ExitCode.usage,
      '--config goes without --export, --listen, --nqn and --allow',
      {
        remedy: 'write them into the configuration file',
      },
    );
  }
  return loadConfig(flags.config, overrides(flags));
}

/** The commands with which hosts reach it, ours and the kernel's. */
export function connectCommands(config: TargetConfig): string[] {
  return config.ports.flatMap(({ address, port }) => {
    const endpoint = formatEndpoint({ address: parseAddress(address), port });
    const ours = port === DEFAULT_LISTEN.port ? address : endpoint;
    return config.subsystems.flatMap(({ nqn }) => [
      `nvmeof info ${ours} ${nqn}`,
      `nvme connect -t rdma -a ${address} -s ${port} -n ${nqn}`,
    ]);
  });
}

function logStart(target: Target, config: TargetConfig, log: ReturnType<typeof makeLogger>): void {
  for (const device of target.devices) {
    const { provider, rdmaDevice, fabric, address, pathMtu } = device;
    const { receiveBufferBytes, gso, gro } = device;
    const details = provider === 'soft' ? { receiveBufferBytes, gso, gro } : { rdmaDevice, fabric };
    log.info({ provider, address, pathMtu, ...details }, 'device');
  }
  for (const { nqn, namespaces } of config.subsystems) {
    for (const { nsid, path, memory, null: nothing, blockSize, readOnly, uuid } of namespaces) {
      const size = memory ?? nothing;
      const source = path ?? (memory === undefined ? 'null' : 'memory');
      log.info(
        {
          nqn,
          nsid,
          source,
          ...(size === undefined ? {} : { size: formatSize(size) }),
          blockSize,
          readOnly,
          uuid,
        },
        'namespace',
      );
    }
  }
}

/** What is served besides NVMe. */
interface Extras {
  readonly metrics: StatisticsServer | undefined;
  readonly control: ControlServer | undefined;
}

async function openExtras(
  target: Target,
  service: TargetService,
  config: TargetConfig,
  flags: TargetFlags,
): Promise<Extras> {
  const metrics =
    flags.metrics && (await StatisticsServer.listen(flags.metrics, () => target.statistics()));
  try {
    return { metrics, control: await service.openControl(config.control) };
  } catch (error) {
    await metrics?.close();
    throw error;
  }
}

function serviceOf(
  target: Target,
  flags: TargetFlags,
  log: ReturnType<typeof makeLogger>,
  manager: ServiceManager,
): TargetService {
  const common = { target, log, manager, level: flags.log };
  if (flags.config === undefined) return new TargetService(common);
  const service = new TargetService({
    ...common,
    file: { path: flags.config, load: () => targetConfig(flags) },
  });
  // Without a file a terminal that hangs up ends the process.
  process.on('SIGHUP', () => void service.reloadBySignal());
  return service;
}

function printCommands(context: CliContext, config: TargetConfig, json: boolean): void {
  if (json) {
    context.printJson({ commands: connectCommands(config) });
    return;
  }
  context.print('A host connects with:');
  for (const line of connectCommands(config)) context.print(`  ${line}`);
  context.print('Stop with Ctrl-C or SIGTERM.');
}

async function runTarget(context: CliContext, flags: TargetFlags): Promise<void> {
  if (flags.injectFaults === true) requireParent();
  const config = await targetConfig(flags);
  const log = makeLogger(context.streams, flags.log, flags.json ?? false);
  const manager = new ServiceManager(log);
  const signal = untilSignal();
  const running: { target?: Target } = {};
  // From the start to the end: without a listener the signal opens Node's debugger, or ends the process.
  process.on('SIGUSR1', () => {
    if (running.target) log.info(nonZero(running.target.counters()), 'counters');
  });
  const faultInjection = flags.injectFaults ?? false;
  const target = await Target.start(config, { log, faultInjection });
  if (faultInjection) serveParent(target, log);
  running.target = target;
  logStart(target, config, log);
  const service = serviceOf(target, flags, log, manager);
  // A target that cannot serve what was asked for does not stay.
  const extras = await openExtras(target, service, config, flags).catch(async (error: unknown) => {
    await target.close();
    throw error;
  });
  printCommands(context, config, flags.json ?? false);
  manager.ready(service.status);
  const reason = await Promise.race([signal, service.stopAsked.then(() => 'asked to')]);
  manager.stopping();
  log.info({ signal: reason }, 'stopping');
  await extras.metrics?.close();
  await target.close();
  service.stopped();
  await extras.control?.close();
  log.info({}, 'stopped');
}

function collect<T>(parse: (text: string) => T) {
  return (text: string, all: readonly T[] = []): readonly T[] => [...all, parse(text)];
}

const EXAMPLES: Parameters<typeof addExamples>[1] = [
  ['a disk image, to hosts on this machine', 'nvmeof target --export disk.img'],
  [
    'a device, to one host on the network',
    'nvmeof target --export /dev/nvme0n1,bs=4096 --listen 192.0.2.7 --allow nqn.2014-08.org.nvmexpress:uuid:…',
  ],
  [
    'memory and an image read-only, two cores',
    'nvmeof target --export memory:4GiB --export disk.img,ro --cores 2,3',
  ],
  [
    'a file that live changes are saved to (nvmeof config save)',
    'nvmeof target --config target.json --control /run/nvmeof/target.sock',
  ],
  [
    'four cores, of which one network has one to itself',
    'nvmeof target --export disk.img --cores 0-3 --listen 192.0.2.7@0-2 --listen 198.51.100.7@3',
  ],
];

export const targetCommand: SubCommand = {
  name: 'target',
  define(command, context) {
    command
      .summary('export files and block devices')
      .description(
        'Exports files, block devices or memory as NVMe namespaces, in the foreground, until SIGINT or ' +
          'SIGTERM; then I/O in flight is finished first. SIGUSR1 logs the counters; SIGHUP reads the file of --config again ' +
          'and applies the difference.\n\n' +
          'An export is PATH, memory:SIZE or null:SIZE, with options behind commas: ro, bs=512|4096, ' +
          'uuid=…, nguid=…, nsid=…, serial=…, size=…, cache=write-back|write-through|direct, shared.',
      )
      .option('--config <file>', 'configuration file (JSON)')
      .option('--export <what>', 'namespace to export; repeat for more', collect(String))
      .option(
        '--nqn <nqn>',
        `of the subsystem (default: ${defaultNqn('HOSTNAME').replace('hostname', 'HOSTNAME')})`,
      )
      .option(
        '--listen <address[:port][@cores]>',
        'where, and on which of --cores its queues run, such as 192.0.2.7@2,3; repeat for more (default: 127.0.0.1:4420, all cores)',
        collect(listenPort),
      )
      .option(
        '--allow <host-nqn>',
        'only this host; repeat for more (default: any)',
        collect(String),
      )
      .option(
        '--cores <list>',
        'cores of the reactors, such as 0,1 (default: one, not pinned)',
        coreList,
      )
      .option('--poll', 'never sleep: lowest latency, whole cores')
      .addOption(
        new Option(
          '--provider <name>',
          'auto takes verbs where an RDMA device owns the address, else soft',
        ).choices(['auto', 'soft', 'verbs']),
      )
      .option('--mtu <bytes>', 'path MTU: 256, 512, 1024, 2048 or 4096', wholeNumber(256, 4096))
      .addOption(icrcOption())
      .addOption(socketBufferOption())
      .option(
        '--pcap <file>',
        'write every packet to a file for Wireshark; with several addresses one file each',
      )
      .addOption(
        new Option(
          '--metrics [address[:port]]',
          `serve Prometheus metrics, and nvmeof stats, over HTTP (127.0.0.1:${METRICS_PORT} without a value)`,
        )
          .preset('127.0.0.1')
          .argParser(metricsEndpoint),
      )
      .option(
        '--control <path>',
        'socket for live changes: nvmeof status, subsystem, namespace … (default: /run/nvmeof/target.sock for root, else ' +
          '$XDG_RUNTIME_DIR/nvmeof/target.sock)',
      )
      .option('--no-control', 'no such socket')
      .addOption(new Option('--log <level>', 'log level').choices([...LOG_LEVELS]).default('info'))
      .option('--json', 'log and print JSON even on a terminal')
      // For tests, and of no use without the program that runs them: docs/failover.md.
      .addOption(new Option('--inject-faults').hideHelp())
      .action((flags: TargetFlags) => runTarget(context, flags));
    addExamples(command, EXAMPLES);
  },
};
