/** Connections of the kernel's host: what it asks for and gets, and that nothing stays behind of many. */
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { live, NQN, startOurTarget, type OurTarget } from '../support/our-target.ts';
import { everyKernel, side } from '../support/scenario.ts';

const MEGABYTE = 1 << 20;

interface Holdings {
  readonly residentBytes: number;
  readonly descriptors: number;
  readonly open: Readonly<Record<string, number>>;
}

async function holdings(target: OurTarget): Promise<Holdings> {
  const folder = `/proc/${String(target.process.child.pid)}`;
  const resident = /VmRSS:\s+(\d+) kB/.exec(readFileSync(`${folder}/status`, 'utf8'));
  return {
    residentBytes: Number(resident?.[1]) * 1024,
    descriptors: readdirSync(`${folder}/fd`).length,
    open: live(await target.counters()),
  };
}

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'queue count, queue size and keep-alive time as asked',
    { variants: everyKernel(), guest: { processors: 4 }, seconds: 240 },
    async (lab) => {
      await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const cases = [
        {
          args: '--nr-io-queues=1 --queue-size=16 --keep-alive-tmo=2',
          queues: 2,
          sqsize: 15,
          kato: 2,
        },
        {
          args: '--nr-io-queues=4 --queue-size=128 --keep-alive-tmo=30',
          queues: 5,
          sqsize: 127,
          kato: 30,
        },
        { args: '--nr-io-queues=3 --queue-size=33', queues: 4, sqsize: 32, kato: 5 },
        {
          args: '--nr-io-queues=2 --nr-write-queues=1 --nr-poll-queues=1',
          queues: 5,
          sqsize: 127,
          kato: 5,
        },
      ];
      for (const { args, queues, sqsize, kato } of cases) {
        const device = await host.connectDevice({ args });
        const controller = device.slice(5, -2);
        const read = await host.guest.run(
          `cd /sys/class/nvme/${controller}; cat queue_count sqsize kato`,
        );
        expect(read.trim().split('\n').map(Number), args).to.deep.equal([queues, sqsize, kato]);
        await host.fio(
          device,
          '--rw=randwrite --bs=4k --size=1m --iodepth=32 --verify=crc32c --numjobs=4 --offset_increment=2m',
        );
        await host.disconnect();
      }
    },
  );

  scenario(
    'more queues and depth than the port offers',
    { variants: everyKernel(), guest: { processors: 4 }, seconds: 120 },
    async (lab) => {
      const config = join(lab.folder, 'target.json');
      writeFileSync(
        config,
        JSON.stringify({
          ports: [{ address: lab.address, maxQueues: 2, queueDepth: 32 }],
          subsystems: [{ nqn: NQN, namespaces: [{ memory: '64MiB' }] }],
        }),
      );
      const target = lab.nvmeof('target', ['target', '--config', config]);
      await target.waitFor(/nvme connect -t rdma/);
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice({ args: '--nr-io-queues=4 --queue-size=1024' });
      const controller = device.slice(5, -2);
      const read = await host.guest.run(`cd /sys/class/nvme/${controller}; cat queue_count sqsize`);
      expect(read.trim().split('\n').map(Number)).to.deep.equal([3, 31]);
      await host.fio(device, '--rw=randwrite --bs=4k --size=2m --iodepth=64 --verify=crc32c');
      await host.disconnect();
    },
  );

  scenario(
    'an idle host of eight I/O queues disconnects without delay',
    { variants: everyKernel(), guest: { processors: 4 }, seconds: 120 },
    async (lab) => {
      await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const controller = (
        await host.connectDevice({ args: '--nr-io-queues=4 --nr-poll-queues=4' })
      ).slice(5, -2);
      const queues = await host.guest.run(`cat /sys/class/nvme/${controller}/queue_count`);
      expect(Number(queues)).to.equal(9);
      // Emulated processors are slow; a peer that waits for a timer of the connection manager takes far longer.
      const spent = await host.guest.run(
        `start=$(cut -d' ' -f1 /proc/uptime)
         nvme disconnect -n ${NQN} >/dev/null
         awk -v start=$start '{print $1 - start}' /proc/uptime`,
      );
      expect(Number(spent), 'seconds').to.be.lessThan(3);
    },
  );

  scenario(
    '200 rounds of connect and disconnect leave nothing behind',
    { variants: everyKernel(), seconds: 900 },
    async (lab) => {
      const target = await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const rounds = (count: number): Promise<string> =>
        host.guest.run(
          `for round in $(seq ${count}); do
             ${host.connectCommand()} || { echo "round $round"; exit 1; }
             nvme disconnect -n ${NQN} >/dev/null
           done`,
          850,
        );
      await rounds(10); // what grows once, has grown
      const before = await holdings(target);
      await rounds(200);
      const after = await holdings(target);
      expect(after.open).to.deep.equal(before.open);
      expect(after.descriptors).to.equal(before.descriptors);
      expect(after.residentBytes - before.residentBytes).to.be.lessThan(24 * MEGABYTE);
    },
  );
});
