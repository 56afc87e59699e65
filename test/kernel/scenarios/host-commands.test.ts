/** What nvme-cli sends to our target: everything that reads something, and what changes something. */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { NQN, startOurTarget } from '../support/our-target.ts';
import { DEFAULT, everyKernel, side } from '../support/scenario.ts';

/** Sub-command of nvme and what its output has to show; C is the controller, D the device of namespace 1. */
const READING: readonly (readonly [command: string, shows: RegExp])[] = [
  ['list', /\/dev\/nvme\d+n1/],
  ['list-subsys', /rdma traddr=.*live/],
  ['id-ctrl C', /subnqn +: nqn\.2026-11\.io\.nvmeof:kernel-test/],
  ['id-ns D', /nsze +: 0x80000\b/],
  ['ns-descs D', /uuid +: [0-9a-f-]{36}/],
  ['list-ns C', /\[ +0\]:0x1\b/],
  ['smart-log C', /critical_warning\s+: 0\b/],
  ['error-log C', /Error Log Entries/],
  ['fw-log C', /Firmware Log/],
  // With the command set: left to find it by itself, nvme-cli 2.3 reads freed memory over fabrics.
  ['effects-log C -c 0', /ACS6 .*Identify/],
  ['supported-log-pages C', /LID 0x2 .*SMART/],
  ['changed-ns-list-log C -o json', /Changed (Attached )?Namespace List/],
  ['get-feature C -f 7 -H', /Number of IO Completion Queues Allocated/],
  ['get-feature C -f 0xb', /async/i],
  ['get-feature C -f 0xf', /Current value/],
  ['show-regs C', /cap +: [0-9a-f]+/],
  ['get-property C --offset=0', /Controller Capabilities.*value: (0x)?[0-9a-f]+/],
  ['get-property C --offset=8', /Version.*value: (0x)?20000/],
  ['get-property C --offset=0x14', /Controller Configuration.*value: (0x)?460061/],
  ['get-property C --offset=0x1c', /Controller Status.*value: (0x)?1\b/],
];

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'nvme sub-commands that read',
    { core: [DEFAULT], variants: everyKernel() },
    async (lab) => {
      await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const controller = await host.connect();
      const device = await host.device();
      const wrong: string[] = [];
      const showsRegisters = !(await host.guest.run('nvme --version')).includes('version 2.3 ');
      for (const [command, shows] of READING) {
        // nvme-cli 2.3 (Debian 12) gives up at the first property that a fabric has not, with nvmet as well.
        if (command.startsWith('show-regs') && !showsRegisters) continue;
        const line = command.replace(/\bC$|\bC /, `/dev/${controller} `).replace(/\bD$/, device);
        const { code, stdout, stderr } = await host.guest.attempt(`nvme ${line}`);
        if (code !== 0 || !shows.test(stdout)) {
          wrong.push(`nvme ${line}: exit code ${code}\n${stdout}${stderr}`);
        }
      }
      expect(wrong, wrong.join('\n')).to.be.empty;
    },
  );

  scenario(
    'nvme sub-commands that write',
    { core: [DEFAULT], variants: everyKernel() },
    async (lab) => {
      await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const controller = await host.connect();
      const device = await host.device();
      const run = (command: string): Promise<string> => host.guest.run(`nvme ${command}`);
      await host.guest.run('dd if=/dev/urandom of=/tmp/data bs=4096 count=16 2>&1');
      // 16 blocks of 512 bytes at LBA 8, in numbers that count from 0
      const range = '-s 8 -c 15';
      await run(`write ${device} ${range} -z 8192 -d /tmp/data`);
      await run(`read ${device} ${range} -z 8192 -d /tmp/back`);
      await host.guest.run('head -c 8192 /tmp/data | cmp - /tmp/back');
      await run(`compare ${device} ${range} -z 8192 -d /tmp/data`);
      const differs = await host.guest.attempt(
        `nvme compare ${device} -s 9 -c 14 -z 7680 -d /tmp/data`,
      );
      expect(differs.code).to.not.equal(0);
      expect(differs.stdout + differs.stderr).to.match(/COMPARE_FAILED|Compare Failure/i);
      await run(`verify ${device} ${range}`);
      await run(`flush ${device} -n 1`);
      await run(`write-zeroes ${device} ${range}`);
      await run(`read ${device} ${range} -z 8192 -d /tmp/back`);
      await host.guest.run('head -c 8192 /dev/zero | cmp - /tmp/back');
      await run(`write ${device} ${range} -z 8192 -d /tmp/data`);
      await run(`dsm ${device} -n 1 -d -s 8 -b 16`);
      await run(`read ${device} ${range} -z 8192 -d /tmp/back`);
      await host.guest.run('head -c 8192 /dev/zero | cmp - /tmp/back');
      await run(`ns-rescan /dev/${controller}`);
      await run(`reset /dev/${controller}`);
      await host.waitForState(controller, 'live');
      await host.fio(device, '--rw=randwrite --bs=4k --size=1m --iodepth=4 --verify=crc32c');
      await host.guest.run(`nvme disconnect -d ${controller}`);
      await host.guest.until(`[ ! -e /dev/${controller} ]`);
      expect(await host.guest.run('nvme list-subsys')).to.not.include(NQN);
    },
  );
});
