/**
 * How long I/O stands still when the path that it uses is lost: the kernel's host on two of our targets, on two ports of
 * nvmet, and our own host on two of our targets. Nothing may fail; times are printed and not asserted, since the guests are
 * emulated. In all three the first path is optimized and the second non-optimized, and both live, when it happens.
 *   npm run test:kernel -- --grep 'how long I/O stands still'
 */
import { expect } from 'chai';
import { connectPaths } from '../../../initiator/index.ts';
import { fioLoad, ourLoad, type SteadyLoad, type Stalls } from '../support/figures-load.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { waitForPaths } from '../support/kernel-paths.ts';
import { addOutsideAddress } from '../support/network.ts';
import { NvmetPaths } from '../support/nvmet-paths.ts';
import { NQN } from '../support/our-target.ts';
import { side, type Lab } from '../support/scenario.ts';
import { SharedDisk } from '../support/shared-disk.ts';
import { until } from '../support/until.ts';

const ROUNDS = 3;
const SECONDS = 11;
const EVENTS = {
  killed: 'a target is killed (SIGKILL)',
  stopped: 'a target is stopped (SIGTERM; nvmet: subsystem taken off the port)',
  blackhole: 'no packets either way',
  ana: 'the path becomes inaccessible (ANA)',
} as const;
type Event = keyof typeof EVENTS;

/** The first path: lost, and there again. */
interface Fault {
  readonly begin: () => Promise<unknown>;
  readonly end: () => Promise<unknown>;
}

interface Contender {
  readonly name: string;
  readonly faults: Readonly<Partial<Record<Event, Fault>>>;
  readonly load: () => Promise<SteadyLoad>;
  /** Resolves when both paths are usable as in the beginning. */
  readonly whole: () => Promise<unknown>;
  /** What the host said about it since the last time it was asked. */
  readonly news: () => Promise<string>;
  readonly leave: () => Promise<unknown>;
}

function ourFaults({ sides: [first] }: SharedDisk): Contender['faults'] {
  const begin = (): Promise<void> => first.begin();
  return {
    killed: { begin: () => first.end('SIGKILL'), end: begin },
    stopped: { begin: () => first.end('SIGTERM'), end: begin },
    blackhole: { begin: () => first.blackhole(), end: () => first.mend() },
    ana: { begin: () => first.setAna('inaccessible'), end: () => first.setAna('optimized') },
  };
}

/** Reconnecting sooner than after the default of 10 s makes the figures come sooner, and not smaller. */
const RECONNECT_S = 2;

async function kernelHost(
  lab: Lab,
  name: string,
  addresses: readonly [string, string],
  faults: Contender['faults'],
): Promise<Contender> {
  const host = await KernelHost.prepare(lab);
  for (const address of addresses) {
    await host.connect({ address, args: `--reconnect-delay=${RECONNECT_S}` });
  }
  const device = await host.device();
  // Says so when a repetition registers memory for the second time, which ends the queue pair.
  await host.guest.run(
    `echo 'module rdma_rxe func rxe_reg_fast_mr +p' >/sys/kernel/debug/dynamic_debug/control`,
  );
  const wanted = { [addresses[0]]: 'live optimized', [addresses[1]]: 'live non-optimized' };
  return {
    ...{ name, faults },
    load: async () => {
      await host.guest.run('dmesg -C');
      return fioLoad(host, device, SECONDS);
    },
    whole: () => waitForPaths(host, device, wanted, 120),
    news: () =>
      host.guest.run(
        `dmesg | grep -o 'nvme nvme[0-9]*: .*\\|mr->lkey .*' | grep -v 'ANA log' | head -n 2 | tr '\\n' ';'`,
      ),
    leave: () => host.disconnect(),
  };
}

async function ownHost(lab: Lab, disk: SharedDisk): Promise<Contender> {
  const sourceAddress = '10.10.0.201';
  addOutsideAddress(sourceAddress);
  const subsystem = await connectPaths({
    nqn: NQN,
    paths: disk.sides.map(({ address }) => ({ address, sourceAddress })),
    reconnectDelayMs: RECONNECT_S * 1000,
  });
  lab.defer(() => subsystem.disconnect());
  let said: string[] = [];
  subsystem.on('pathState', ({ endpoint, from, to, reason }) => {
    said.push(`${endpoint} ${from} → ${to} (${reason})`);
  });
  const states = (): string[] =>
    subsystem.paths.map(
      ({ state, anaGroups }) => `${state} ${anaGroups.map((group) => group.state).join()}`,
    );
  return {
    name: 'our host, our targets',
    faults: ourFaults(disk),
    load: () => {
      said = [];
      return ourLoad(subsystem, SECONDS);
    },
    whole: () =>
      until('both paths of our host', 60, () =>
        ['live optimized', 'live non-optimized'].every((wanted) => states().includes(wanted)),
      ),
    news: () => Promise.resolve(said.slice(0, 2).join('; ')),
    leave: () => subsystem.disconnect(),
  };
}

async function measure(
  { faults, load, whole, news }: Contender,
  event: Event,
): Promise<{ readonly stalls: Stalls; readonly told: string } | undefined> {
  const fault = faults[event];
  if (!fault) return undefined;
  await whole();
  const { ended } = await load();
  await fault.begin();
  const stalls = await ended;
  const told = await news();
  await fault.end();
  return { stalls, told };
}

/** "median (worst)" of what `of` picks, in ms. */
function cell(all: readonly Stalls[], of: (stalls: Stalls) => number): string {
  const sorted = all.map(of).sort((a, b) => a - b);
  const ms = (value = NaN): string => `${Math.round(value)} ms`;
  return `${ms(sorted[Math.floor(sorted.length / 2)])} (${ms(sorted.at(-1))})`;
}

side('kernel host → two of our targets on soft', (scenario) => {
  scenario(
    'how long I/O stands still, beside nvmet and our own host',
    { seconds: 1800 },
    async (lab) => {
      const rows: string[] = [];
      let errors = 0;
      /** One after the other, so that each has the machine to itself. */
      const contest = async (contender: Contender): Promise<void> => {
        for (const event of Object.keys(EVENTS) as Event[]) {
          const all: Stalls[] = [];
          for (let round = 0; round < ROUNDS; round += 1) {
            const measured = await measure(contender, event);
            if (!measured) continue;
            const { stalls, told } = measured;
            all.push(stalls);
            errors += stalls.errors;
            console.log(`      ${contender.name}, ${event}: ${JSON.stringify(stalls)} ${told}`);
          }
          if (all.length === 0) continue;
          const figures = [
            cell(all, ({ readMs }) => readMs),
            cell(all, ({ writeMs }) => writeMs),
            cell(all, ({ beforeMs }) => beforeMs),
            String(all.reduce((sum, stalls) => sum + stalls.errors, 0)),
          ];
          rows.push(`| ${[EVENTS[event], contender.name, ...figures].join(' | ')} |`);
        }
        await contender.whole();
        await contender.leave();
      };

      const disk = await SharedDisk.start(lab);
      const [first, second] = disk.sides;
      await second.setAna('non-optimized');
      const ours = [first.address, second.address] as const;
      await contest(await kernelHost(lab, 'Linux host, our targets', ours, ourFaults(disk)));
      const nvmet = await NvmetPaths.start(lab);
      const { guest } = await lab.takeGuest();
      await nvmet.setAna(1, 'non-optimized');
      await contest(
        await kernelHost(lab, 'Linux host, nvmet', nvmet.addresses, {
          stopped: { begin: () => nvmet.withdraw(0), end: () => nvmet.offer(0) },
          blackhole: { begin: () => nvmet.blackhole(0, guest), end: () => nvmet.mend(guest) },
          ana: {
            begin: () => nvmet.setAna(0, 'inaccessible'),
            end: () => nvmet.setAna(0, 'optimized'),
          },
        }),
      );
      await contest(await ownHost(lab, disk));
      console.log(rows.map((row) => `      ${row}`).join('\n'));
      expect(errors, 'requests that failed').to.equal(0);
    },
  );
});
