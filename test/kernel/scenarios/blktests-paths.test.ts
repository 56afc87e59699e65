/** Several paths whose ANA groups differ, or none that can be used, as blktests does it (docs/blktests.md). */
import { randomUUID } from 'node:crypto';
import { expect } from 'chai';
import type { AnaStateName } from '../../../target/index.ts';
import { anaLog, listPaths, waitForPaths } from '../support/kernel-paths.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { LiveTarget } from '../support/live-target.ts';
import { NQN, PORT } from '../support/our-target.ts';
import { everyKernel, side, type Lab } from '../support/scenario.ts';
import { SharedDisk } from '../support/shared-disk.ts';
import { pause } from '../support/until.ts';

const PORTS = [PORT, PORT + 1, PORT + 2] as const;
const GROUPS = [1, 2, 3] as const;
const NSIDS = [1, 2, 3, 4, 5, 6] as const;
const STATES: readonly AnaStateName[] = ['optimized', 'non-optimized', 'inaccessible'];
const ROUNDS = 10;

/** At each port another group is optimized; each group is inaccessible at one port. */
const stateAt = (port: number, group: number): AnaStateName =>
  STATES[(port - PORT + group) % STATES.length] ?? 'optimized';

const memory = { memory: '8MiB' } as const;
const GOOD = 'live optimized';

/** A write through the block layer that goes on until the kernel has decided. */
const WRITE = 'dd if=/dev/urandom bs=4k count=1 oflag=direct conv=notrunc';

interface Away {
  readonly disk: SharedDisk;
  readonly host: KernelHost;
  readonly device: string;
}

/** Two targets whose ports are taken away, so that attempts to come back are refused at once. */
async function withoutPaths(lab: Lab, args: string, prepare = ''): Promise<Away> {
  const disk = await SharedDisk.start(lab);
  const host = await KernelHost.prepare(lab);
  for (const { address } of disk.sides) {
    await host.connect({ address, args: `--reconnect-delay=1 --keep-alive-tmo=5 ${args}` });
  }
  const device = await host.device();
  await host.guest.run(`${WRITE} of=${device}\n${prepare}`);
  for (const one of disk.sides) await one.withdraw();
  return { disk, host, device };
}

const both = (disk: SharedDisk, state: string): Record<string, string> =>
  Object.fromEntries(disk.sides.map(({ address }) => [address, state]));

side('kernel host → two of our targets on soft', (scenario) => {
  scenario(
    'I/O waits while every path is away, and goes on when one is back',
    { variants: everyKernel(), seconds: 240 },
    async (lab) => {
      const { disk, host, device } = await withoutPaths(lab, '--ctrl-loss-tmo=120');
      await waitForPaths(host, device, both(disk, 'connecting optimized'));
      let ended = false;
      const write = host.guest.run(`${WRITE} of=${device}`, 120).finally(() => {
        ended = true;
      });
      write.catch(() => undefined);
      await pause(3000);
      expect(ended, 'a write without a path ends').to.equal(false);
      await disk.sides[1].offer();
      await write;
      const [first, second] = disk.sides;
      await waitForPaths(host, device, {
        [first.address]: 'connecting optimized',
        [second.address]: GOOD,
      });
      await first.offer();
      await waitForPaths(host, device, both(disk, GOOD));
      await host.disconnect();
    },
  );

  scenario(
    'fast_io_fail_tmo ends the waiting: I/O fails, the device stays and works again',
    { variants: everyKernel(), seconds: 240 },
    async (lab) => {
      const { disk, host, device } = await withoutPaths(
        lab,
        '--ctrl-loss-tmo=120',
        // Not every nvme-cli has an option for it.
        'for file in /sys/class/nvme/nvme*/fast_io_fail_tmo; do echo 2 >$file; done',
      );
      const refused = await host.guest.attempt(`${WRITE} of=${device}`, 60);
      expect(refused.code).to.equal(1);
      expect(refused.stderr).to.include('Input/output error');
      expect((await listPaths(host, device)).map(({ state }) => state)).to.deep.equal([
        'connecting',
        'connecting',
      ]);
      for (const one of disk.sides) await one.offer();
      await waitForPaths(host, device, both(disk, GOOD));
      await host.guest.run(`${WRITE} of=${device}`);
      await host.disconnect();
    },
  );

  scenario(
    'after ctrl_loss_tmo the device is gone, and comes back under its UUID with its data',
    { variants: everyKernel(), seconds: 240 },
    async (lab) => {
      const { disk, host, device } = await withoutPaths(lab, '--ctrl-loss-tmo=4');
      const sum = (name: string): Promise<string> =>
        host.guest.run(`sha256sum <${name}`, 60).then((text) => text.trim());
      const uuid = (await host.guest.run(`cat /sys/block/${device.slice(5)}/uuid`)).trim();
      const waiting = await host.guest.attempt(`${WRITE} of=${device}`, 120);
      expect(waiting.code, 'a write whose paths are all given up').to.equal(1);
      await host.guest.until(
        `[ ! -e /sys/block/${device.slice(5)} ] && [ ! -e /sys/class/nvme/nvme0 ]`,
      );
      for (const one of disk.sides) await one.offer();
      for (const { address } of disk.sides) await host.connect({ address });
      const again = await host.device();
      await waitForPaths(host, again, both(disk, GOOD));
      expect((await host.guest.run(`cat /sys/block/${again.slice(5)}/uuid`)).trim()).to.equal(uuid);
      const before = await sum(again);
      await host.guest.run(`${WRITE} of=${again}`);
      expect(await sum(again)).not.to.equal(before);
      await host.disconnect();
    },
  );

  scenario(
    'admin commands are answered while every path is inaccessible',
    { variants: everyKernel(), seconds: 180 },
    async (lab) => {
      const disk = await SharedDisk.start(lab);
      const host = await KernelHost.prepare(lab);
      for (const { address } of disk.sides) await host.connect({ address });
      const device = await host.device();
      const controllers = (await listPaths(host, device)).map(({ controller }) => controller);
      for (const one of disk.sides) await one.setAna('inaccessible');
      await waitForPaths(host, device, both(disk, 'live inaccessible'));
      for (const controller of controllers) {
        const node = `/dev/${controller}`;
        await host.guest.run(
          `nvme id-ctrl ${node}; nvme nvm-id-ctrl ${node}; nvme ns-descs ${node} -n 1; nvme smart-log ${node}`,
        );
        const namespace = await host.guest.run(`nvme id-ns ${node} -n 1`);
        expect(namespace, 'no utilization while it cannot be used').to.match(/nuse\s*:\s*0(x0)?\s/);
        expect(await anaLog(host, controller)).to.deep.equal([
          { group: 1, state: 'inaccessible', nsids: [1] },
        ]);
      }
      for (const one of disk.sides) await one.setAna('optimized');
      await waitForPaths(host, device, both(disk, GOOD));
      await host.guest.run(`${WRITE} of=${device}`);
      await host.disconnect();
    },
  );
});

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'namespaces of three ANA groups are remapped faster than the host looks, over three ports',
    { variants: everyKernel(), seconds: 300 },
    async (lab) => {
      const groupOf = (nsid: number, round: number): number =>
        GROUPS[(nsid + round) % GROUPS.length] ?? 1;
      const endpoint = (port: number): string =>
        lab.address.includes(':') ? `[${lab.address}]:${port}` : `${lab.address}:${port}`;
      const ana = PORTS.flatMap((port) =>
        GROUPS.map((group) => ({ group, state: stateAt(port, group), port: endpoint(port) })),
      );
      const namespaces = NSIDS.map((nsid) => ({ ...memory, nsid, anaGroup: groupOf(nsid, 0) }));
      const target = await LiveTarget.start(lab, {
        ports: PORTS,
        subsystems: [{ nqn: NQN, namespaces, ana }],
      });
      const host = await KernelHost.prepare(lab);
      const controllers: string[] = [];
      for (const port of PORTS) controllers.push(await host.connect({ port }));

      let uuids: string[] = [];
      for (let round = 1; round <= ROUNDS; round++) {
        const order = round % 2 === 0 ? NSIDS : NSIDS.toReversed();
        for (const nsid of order) await target.call('removeNamespace', NQN, nsid);
        uuids = NSIDS.map(() => randomUUID());
        for (const nsid of order.toReversed()) {
          const uuid = uuids[nsid - 1] ?? '';
          const anaGroup = groupOf(nsid, round);
          await target.call('addNamespace', NQN, { ...memory, nsid, uuid, anaGroup });
        }
      }
      // A kernel that finds another UUID under an NSID takes the old device away, and looks again when it is told to.
      const rescan = controllers.map((name) => `nvme ns-rescan /dev/${name}`).join('; ');
      for (const uuid of uuids) {
        // One multipath device, and a path to it by each controller.
        await host.guest.until(
          `[ "$(cat /sys/block/nvme*/uuid 2>/dev/null | grep -cx ${uuid})" = ${1 + PORTS.length} ] || { ${rescan}; exit 1; }`,
          60,
        );
      }
      for (const nsid of NSIDS) {
        const device = await host.device(NQN, nsid);
        const paths = await listPaths(host, device);
        const group = groupOf(nsid, ROUNDS);
        expect(
          paths.map(({ port, state, ana: told }) => ({ port, state, told })),
          device,
        ).to.have.deep.members(
          PORTS.map((port) => ({ port, state: 'live', told: stateAt(port, group) })),
        );
        await host.fio(device, '--rw=randwrite --bs=4k --size=256k --iodepth=4 --verify=crc32c');
      }
      for (const [index, controller] of controllers.entries()) {
        expect(await anaLog(host, controller), controller).to.deep.equal(
          GROUPS.map((group) => ({
            group,
            state: stateAt(PORTS[index] ?? PORT, group),
            nsids: NSIDS.filter((nsid) => groupOf(nsid, ROUNDS) === group),
          })),
        );
      }
      await host.disconnect();
    },
  );
});
