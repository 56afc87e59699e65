/** The kernel's host on our target: discovery, connecting, one read and write. */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { NQN, startOurTarget } from '../support/our-target.ts';
import { DEFAULT, everyVariant, side, SMALL_V6 } from '../support/scenario.ts';

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'discover, connect, write, read, disconnect',
    { core: [DEFAULT, SMALL_V6], variants: everyVariant() },
    async (lab) => {
      const target = await startOurTarget(lab);
      const host = await KernelHost.prepare(lab);
      const log = await host.guest.run(`nvme discover ${host.fabric()}`);
      expect(log).to.include(NQN).and.to.include(target.address);
      const device = await host.connectDevice();
      await host.guest.run(`
        dd if=/dev/urandom of=/tmp/data bs=1M count=8 2>&1
        dd if=/tmp/data of=${device} bs=1M oflag=direct 2>&1
        dd if=${device} bs=1M count=8 iflag=direct | cmp - /tmp/data`);
      await host.disconnect();
    },
  );
});
