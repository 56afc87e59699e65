/** The kernel's native multipath over two of our targets that export one file: policies, and every way to lose a path. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect } from 'chai';
import type { AnaStateName } from '../../../target/index.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { anaLog, setPolicy, waitForPaths } from '../support/kernel-paths.ts';
import { Load } from '../support/load.ts';
import { SharedDisk } from '../support/shared-disk.ts';
import { DEFAULT, everyKernel, side, type Lab } from '../support/scenario.ts';

const PATIENT = '--reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5';
const VERIFY =
  '--rw=randwrite --bs=4k --iodepth=16 --size=8m --verify=crc32c --verify_fatal=1 --verify_backlog=64';

const READS = 600;
const SLOW_MS = 20;

interface Bench {
  readonly disk: SharedDisk;
  readonly host: KernelHost;
  readonly device: string;
  /** Resolves when nvme-cli says so of the paths to the first and to the second target. */
  readonly paths: (first: string, second: string) => ReturnType<typeof waitForPaths>;
}

async function connectBoth(lab: Lab): Promise<Bench> {
  const disk = await SharedDisk.start(lab);
  const host = await KernelHost.prepare(lab);
  for (const { address } of disk.sides) await host.connect({ address, args: PATIENT });
  const device = await host.device();
  const [one, two] = disk.sides;
  const paths: Bench['paths'] = (first, second) =>
    waitForPaths(host, device, { [one.address]: first, [two.address]: second }, 120);
  await paths(GOOD, GOOD);
  return { disk, host, device, paths };
}

const GOOD = 'live optimized';
const LOST = 'connecting optimized';

/** What the host reads is what the file holds. */
async function expectSame({ disk, host, device }: Bench): Promise<void> {
  const read = await host.guest.run(`nvme flush ${device} -n 1 && sha256sum ${device}`, 120);
  expect(read).to.include(createHash('sha256').update(readFileSync(disk.file)).digest('hex'));
}

/** No error reached the block layer's users, the data are right, and the host can leave. */
async function expectGood(bench: Bench): Promise<void> {
  const { host } = bench;
  expect(await host.guest.run('dmesg | grep -i "I/O error" || true')).to.equal('');
  await expectSame(bench);
  await host.disconnect();
}

side('kernel host → two of our targets on soft', (scenario) => {
  scenario(
    'a target is killed under verified I/O, and serves again when it is back',
    { core: [DEFAULT], seconds: 240 },
    async (lab) => {
      const bench = await connectBoth(lab);
      const { disk, host, device, paths } = bench;
      const [first] = disk.sides;
      // Both are in use.
      await setPolicy(host, 'round-robin');
      const load = await Load.start(host, disk, device, VERIFY);
      await first.end('SIGKILL');
      await paths(LOST, GOOD);
      await load.progress();
      await first.begin();
      await paths(GOOD, GOOD);
      await first.target.progress();
      await load.stop();
      await expectGood(bench);
    },
  );

  scenario(
    'packets vanish, targets end in order, ANA states change, under verified I/O',
    { seconds: 400 },
    async (lab) => {
      const bench = await connectBoth(lab);
      const { disk, host, device, paths } = bench;
      const [first, second] = disk.sides;
      await setPolicy(host, 'round-robin');
      const load = await Load.start(host, disk, device, VERIFY);

      await first.blackhole();
      await paths(LOST, GOOD);
      await load.progress();
      await first.mend();
      await paths(GOOD, GOOD);

      await second.end('SIGTERM');
      await paths(GOOD, LOST);
      await load.progress();
      await second.begin();
      const live = await paths(GOOD, GOOD);

      const controllerOf = (address: string): string =>
        live.find((path) => path.address === address)?.controller ?? '';
      /** What list-subsys tells of both, and the log pages say the same. */
      const states = async (one: AnaStateName, two: AnaStateName): Promise<void> => {
        await paths(`live ${one}`, `live ${two}`);
        for (const [{ address }, state] of [
          [first, one],
          [second, two],
        ] as const) {
          expect(await anaLog(host, controllerOf(address)), address).to.deep.equal([
            { group: 1, state, nsids: [1] },
          ]);
        }
      };
      await states('optimized', 'optimized');
      await first.setAna('inaccessible');
      await states('inaccessible', 'optimized');
      await load.progress();
      await second.setAna('non-optimized');
      await states('inaccessible', 'non-optimized');
      await load.progress();
      await second.setAna('change');
      await states('inaccessible', 'change');
      // Both refuse: the host holds its I/O back, and what it has waits.
      await first.setAna('optimized');
      await states('optimized', 'change');
      await load.progress();
      await second.setAna('persistent-loss');
      await states('optimized', 'persistent-loss');
      await load.progress();
      await second.setAna('optimized');
      await states('optimized', 'optimized');

      await load.stop();
      await expectGood(bench);
    },
  );

  scenario(
    'round-robin, numa and queue-depth choose among the paths',
    { variants: everyKernel(), seconds: 300 },
    async (lab) => {
      const bench = await connectBoth(lab);
      const { disk, host, device, paths } = bench;
      const [first, second] = disk.sides;
      /** Reads that each target executed. */
      const share = async (): Promise<readonly [number, number]> => {
        const before = await disk.ioCommands();
        await host.fio(device, `--rw=randread --bs=4k --iodepth=8 --size=8m --number_ios=${READS}`);
        const after = await disk.ioCommands();
        return [after[0] - before[0], after[1] - before[1]];
      };
      const fewer = (counts: readonly number[]): number => Math.min(...counts);

      await setPolicy(host, 'numa');
      expect(fewer(await share()), 'numa keeps to one path').to.be.below(READS / 100);
      await setPolicy(host, 'round-robin');
      expect(fewer(await share()), 'round-robin takes turns').to.be.above(READS * 0.45);
      await second.setAna('non-optimized');
      await paths(GOOD, 'live non-optimized');
      expect((await share())[1], 'optimized paths alone').to.be.below(READS / 100);
      await second.setAna('optimized');
      await paths(GOOD, GOOD);

      if (lab.variant.kernel === '6.1') {
        const refused = await host.guest.attempt(
          'echo queue-depth >/sys/class/nvme-subsystem/nvme-subsys0/iopolicy',
        );
        expect(refused.code, 'queue-depth begins with 6.11').not.to.equal(0);
      } else {
        await second.delay(SLOW_MS);
        expect(fewer(await share()), 'round-robin does not look').to.be.above(READS * 0.45);
        await setPolicy(host, 'queue-depth');
        const [fast, slow] = await share();
        expect(fast, `queue-depth takes the one that answers, not ${slow}`).to.be.above(slow * 2);
        await second.mend();
        expect(fewer(await share()), 'queue-depth with equal paths').to.be.above(READS / 5);
        expect(slow).to.be.above(0);
      }
      await first.setAna('inaccessible');
      await paths('live inaccessible', GOOD);
      expect((await share())[0], 'none where it is refused').to.equal(0);
      await expectGood(bench);
    },
  );
});
