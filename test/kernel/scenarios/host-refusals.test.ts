/** What our target refuses, and that the kernel's log says why. */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { NQN, startOurTarget } from '../support/our-target.ts';
import { everyKernel, everyVariant, side } from '../support/scenario.ts';

const HOST = 'nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555';

/** The attempt has to fail; returns what it printed and what the kernel logged meanwhile. */
async function refused(host: KernelHost, command: string): Promise<string> {
  await host.guest.run('dmesg -C');
  const { code, stdout, stderr } = await host.guest.attempt(command, 60);
  expect(code, command).to.not.equal(0);
  return stdout + stderr + (await host.guest.run('dmesg'));
}

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'unknown subsystem, host that is not allowed, port without a listener',
    { variants: everyVariant() },
    async (lab) => {
      await startOurTarget(lab, { args: ['--allow', HOST] });
      const host = await KernelHost.prepare(lab);
      const unknown = await refused(
        host,
        host.connectCommand({ nqn: 'nqn.2026-11.io.nvmeof:nobody', args: `--hostnqn=${HOST}` }),
      );
      expect(unknown).to.match(
        /Connect Invalid Data Parameter, subsysnqn "nqn\.2026-11\.io\.nvmeof:nobody"/,
      );
      const stranger = await refused(
        host,
        host.connectCommand({ args: `--hostnqn=${HOST.replace('1111', '9999')}` }),
      );
      expect(stranger).to.match(/Connect for subsystem \S+ is not allowed, hostnqn: /);
      const nobody = await refused(
        host,
        host.connectCommand({ port: 4499, args: `--hostnqn=${HOST}` }),
      );
      expect(nobody).to.match(/Connect rejected: status 8 \(invalid service ID\)/);
      await host.connect({ args: `--hostnqn=${HOST}` });
      await host.disconnect();
    },
  );

  scenario('two hosts with the same host identifier', { variants: everyKernel() }, async (lab) => {
    await startOurTarget(lab, { args: ['--export', 'memory:64MiB'] });
    const id = '--hostid=11111111-2222-4333-8444-555555555555';
    const job = '--rw=randwrite --bs=4k --size=2m --iodepth=16 --verify=crc32c';
    const hosts = [await KernelHost.prepare(lab), await KernelHost.prepare(lab, 'second')];
    for (const [index, host] of hosts.entries()) {
      await host.connect({ args: `--hostnqn=${HOST.slice(0, -1)}${index} ${id}` });
    }
    // One namespace each, at the same time.
    await Promise.all(
      hosts.map(async (host, index) => host.fio(await host.device(NQN, index + 1), job)),
    );
    for (const host of hosts) await host.disconnect();
  });

  scenario(
    'a host that comes back before its old association is gone',
    { variants: everyKernel(), seconds: 200 },
    async (lab) => {
      await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      // A reset without an answer ends with the admin timeout: 60 s, if it were not for this.
      const timeout = '/sys/module/nvme_core/parameters/admin_timeout';
      const before = await host.guest.run(`cat ${timeout}; echo 5 >${timeout}`);
      lab.defer(() =>
        host.guest.alive ? host.guest.run(`echo ${before.trim()} >${timeout}`) : undefined,
      );
      const device = await host.connectDevice({ args: '--keep-alive-tmo=60 --reconnect-delay=1' });
      const controller = device.slice(5, -2);
      for (let round = 0; round < 3; round += 1) {
        // Nothing of the goodbye gets through, so that the target still holds both queues.
        await host.guest.run(`
        modprobe sch_netem
        tc qdisc add dev eth0 root netem loss 100%
        (sleep 3; tc qdisc del dev eth0 root) &
        nvme reset /dev/${controller} || true
        wait`);
        await host.waitForState(controller, 'live', 90);
        await host.fio(device, '--rw=randwrite --bs=4k --size=1m --iodepth=8 --verify=crc32c');
      }
      await host.disconnect();
    },
  );

  scenario(
    'a path MTU that the link does not carry is refused at the start',
    { variants: everyVariant({ mtu: 1024, kernel: '6.12' }) },
    async (lab) => {
      const address = lab.address.includes(':') ? `[${lab.address}]` : lab.address;
      const target = lab.nvmeof('target', [
        'target',
        '--export',
        'memory:1MiB',
        '--listen',
        address,
        '--mtu',
        '4096',
      ]);
      const { code, stdout, stderr } = await target.ended();
      expect(code).to.equal(1);
      expect(stdout + stderr)
        .to.match(/MTU/)
        .and.to.include('1500')
        .and.to.include('4096');
    },
  );
});
