/** The paths of a multipath device as nvme-cli tells them, and the policy that the kernel chooses among them by. */
import type { KernelHost } from './kernel-host.ts';
import { until } from './until.ts';

export interface PathView {
  /** nvme0 */
  readonly controller: string;
  readonly address: string;
  readonly port: number;
  /** live, connecting … */
  readonly state: string;
  /** Of the device's ANA group. */
  readonly ana: string;
}

interface ListedPath {
  readonly Name: string;
  readonly Address: string;
  readonly State: string;
  readonly ANAState?: string;
}

/** nvme-cli asks the device for its ANA states, which fails while no path can be used; sysfs tells them then. */
const anaStates = (device: string): string =>
  `for path in /sys/class/nvme-subsystem/nvme-subsys*/nvme*/nvme*c*${device.slice(device.lastIndexOf('n'))}; do
     controller=\${path%/*}
     echo \${controller##*/} \$(cat $path/ana_state)
   done`;

export async function listPaths(host: KernelHost, device: string): Promise<PathView[]> {
  const text = await host.guest.run(`nvme list-subsys ${device} -o json`);
  const sysfs = new Map(
    (await host.guest.run(anaStates(device)))
      .trim()
      .split('\n')
      .map((line) => line.split(' ') as [string, string]),
  );
  const hosts = JSON.parse(text) as readonly {
    readonly Subsystems: readonly { readonly Paths: readonly ListedPath[] }[];
  }[];
  return hosts.flatMap(({ Subsystems }) =>
    Subsystems.flatMap(({ Paths }) =>
      Paths.map(({ Name, Address, State, ANAState = sysfs.get(Name) ?? '' }) => ({
        controller: Name,
        address: /traddr=([^,\s]+)/.exec(Address)?.[1] ?? '',
        port: Number(/trsvcid=(\d+)/.exec(Address)?.[1]),
        state: State,
        ana: ANAState,
      })),
    ),
  );
}

/** "live optimized" by address; resolves when nvme-cli says just that, and no more paths. */
export async function waitForPaths(
  host: KernelHost,
  device: string,
  wanted: Readonly<Record<string, string>>,
  seconds = 60,
): Promise<PathView[]> {
  let paths: PathView[] = [];
  let seen = '';
  const asked = describe(Object.entries(wanted));
  try {
    await until(asked, seconds, async () => {
      paths = await listPaths(host, device);
      seen = describe(paths.map(({ address, state, ana }) => [address, `${state} ${ana}`]));
      return seen === asked;
    });
  } catch (error) {
    throw new Error(`${(error as Error).message}; the last was ${seen}`, { cause: error });
  }
  return paths;
}

const describe = (paths: readonly (readonly [string, string])[]): string =>
  paths
    .map(([address, state]) => `${address} ${state}`)
    .sort()
    .join(', ');

export interface AnaGroupView {
  readonly group: number;
  readonly state: string;
  readonly nsids: readonly number[];
}

/** The ANA log of one controller. */
export async function anaLog(host: KernelHost, controller: string): Promise<AnaGroupView[]> {
  const log = JSON.parse(await host.guest.run(`nvme ana-log /dev/${controller} -o json`)) as Record<
    string,
    unknown
  >;
  const groups = log['ANA DESC LIST '] as readonly {
    readonly grpid: number;
    readonly state: string;
    readonly NSIDS: readonly { readonly nsid: number }[];
  }[];
  return groups.map(({ grpid, state, NSIDS }) => ({
    group: grpid,
    state,
    nsids: NSIDS.map(({ nsid }) => nsid),
  }));
}

const POLICY_FILE = '/sys/class/nvme-subsystem/nvme-subsys*/iopolicy';

/** The policy of all subsystems; back to the kernel's default when they are gone. */
export async function setPolicy(host: KernelHost, policy: string): Promise<void> {
  await host.guest.run(`for file in ${POLICY_FILE}; do echo ${policy} >$file; done
    for file in ${POLICY_FILE}; do [ $(cat $file) = ${policy} ]; done`);
}
