/** Trouble on the way or at one end while the kernel's host works on our target: nothing lost, nothing hangs, nothing stays. */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { live, NQN, startOurTarget, type OurTarget } from '../support/our-target.ts';
import { DEFAULT, everyKernel, side, SMALL_V6 } from '../support/scenario.ts';
import { until } from '../support/until.ts';

const VERIFY =
  '--rw=randwrite --bsrange=4k-64k --iodepth=16 --verify=crc32c --verify_fatal=1 --group_reporting';
const PATIENT = '--reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=5';

/** Once the host has written something since its device appeared. */
async function writing(host: KernelHost, device: string): Promise<void> {
  // Before 6.5 only the path's own disk, nvme0c0n1, counts.
  const paths = device.slice(5).replace(/n(\d+)$/, '*n$1');
  await host.guest.until(`cat /sys/block/${paths}/stat | awk '{n+=$5} END {exit !(n > 20)}'`, 90);
}

/** Both ways, on the guest's card: what it sends, and by way of an ifb device what it receives. */
async function disturb(host: KernelHost, how: string): Promise<() => Promise<string>> {
  await host.guest.run(`
    modprobe -a sch_netem sch_ingress cls_matchall act_mirred
    modprobe ifb numifbs=0
    ip link add ifb0 type ifb
    ip link set ifb0 mtu 9000 up
    tc qdisc add dev eth0 root netem limit 10000 ${how}
    tc qdisc add dev ifb0 root netem limit 10000 ${how}
    tc qdisc add dev eth0 handle ffff: ingress
    tc filter add dev eth0 parent ffff: matchall action mirred egress redirect dev ifb0`);
  return () =>
    host.guest.run(`tc qdisc del dev eth0 root; tc qdisc del dev eth0 ingress; ip link del ifb0`);
}

const openIn = async (target: OurTarget): Promise<string> =>
  JSON.stringify(live(await target.counters()));

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'target killed and started again under load, the host finishes its verification',
    { core: [DEFAULT], variants: [...everyKernel(), SMALL_V6], seconds: 300 },
    async (lab) => {
      const target = await startOurTarget(lab, { size: 64 << 20 });
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice({ args: PATIENT });
      const job = host.fio(device, `${VERIFY} --size=32m --rate=4m --io_size=24m`, 280);
      job.catch(() => undefined);
      await writing(host, device);
      const second = await target.restart('SIGKILL');
      await host.waitForState(device.slice(5, -2), 'live', 120);
      await second.restart('SIGTERM', 1000);
      await job;
      await host.waitForState(device.slice(5, -2), 'live', 120);
      await host.disconnect();
    },
  );

  scenario(
    'target killed for good: the host reconnects in vain, and can disconnect',
    { variants: everyKernel(), seconds: 300 },
    async (lab) => {
      const target = await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice({ args: PATIENT });
      const controller = device.slice(5, -2);
      const job = host.guest.attempt(
        `dd if=${device} of=/dev/null bs=64k iflag=direct count=4000`,
        280,
      );
      await target.process.stop('SIGKILL');
      await host.waitForState(controller, 'connecting', 60);
      // The kernel ends the connection attempt under way first: 15 requests, one each 4.9 s.
      await host.disconnect(NQN, 150);
      expect((await job).code, 'a read without a target').to.not.equal(0);
    },
  );

  scenario(
    'the guest of a host loses power with I/O in flight: all of it is freed, the other host works on',
    { variants: [DEFAULT], seconds: 300 },
    async (lab) => {
      const target = await startOurTarget(lab, { args: ['--export', 'memory:64MiB'] });
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice();
      const before = await openIn(target);
      const victim = await KernelHost.prepare(lab, 'victim');
      await victim.connect({ args: '--keep-alive-tmo=2' });
      const other = await victim.device(NQN, 2);
      const load = victim.guest.attempt(
        `fio --name=load --filename=${other} --ioengine=libaio --direct=1 --rw=randrw --bs=16k --iodepth=32 --time_based --runtime=200`,
        220,
      );
      load.catch(() => undefined);
      await writing(victim, other);
      const job = host.fio(device, `${VERIFY} --size=8m`, 200);
      await victim.guest.kill();
      await until(
        'the target has freed what the lost host held',
        30,
        async () => (await openIn(target)) === before,
      );
      await job;
      await host.disconnect();
    },
  );

  scenario(
    'cut off for longer than the keep-alive time, the host comes back as another controller',
    { variants: everyKernel(), seconds: 300 },
    async (lab) => {
      const target = await startOurTarget(lab, { size: 64 << 20 });
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice({
        args: '--reconnect-delay=1 --ctrl-loss-tmo=120 --keep-alive-tmo=2',
      });
      const controller = device.slice(5, -2);
      const identity = (): Promise<string> =>
        host.guest.run(`cat /sys/class/nvme/${controller}/cntlid`);
      const before = await identity();
      const open = await openIn(target);
      const job = host.fio(device, `${VERIFY} --size=32m --rate=2m --io_size=24m`, 280);
      job.catch(() => undefined);
      await writing(host, device);
      const heal = await disturb(host, 'loss 100%');
      try {
        await host.waitForState(controller, 'connecting', 60);
        await until(
          'the target gave the host up',
          30,
          async () => !((await target.counters())['live.queues'] ?? 0),
        );
      } finally {
        await heal();
      }
      await host.waitForState(controller, 'live', 120);
      expect(await identity()).not.to.equal(before);
      await job;
      // One association, as before: nothing of the old one, no second timer for the new one.
      expect(await openIn(target)).to.equal(open);
      await host.disconnect();
    },
  );

  for (const [how, netem] of [
    ['0.1 % loss', 'loss 0.1%'],
    ['1 % loss', 'loss 1%'],
    // One packet in fifty is late. Every one of them costs the transport a repetition from there on.
    ['reordering', 'delay 5ms reorder 98%'],
    ['duplicates', 'duplicate 5%'],
  ] as const) {
    scenario(
      `${how} both ways`,
      {
        variants: [DEFAULT, SMALL_V6, ...everyKernel().filter(({ kernel }) => kernel === '6.1')],
        seconds: 400,
      },
      async (lab) => {
        await startOurTarget(lab, { size: 64 << 20 });
        const host = await KernelHost.prepare(lab);
        const device = await host.connectDevice();
        lab.defer(await disturb(host, netem));
        await host.fio(device, `${VERIFY} --size=3m --bsrange=4k-32k`, 380);
      },
    );
  }
});
