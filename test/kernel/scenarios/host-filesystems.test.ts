/** Filesystems of the kernel's host on our target: made, filled, checked, mounted again; discard and zeroing through them. */
import { statSync } from 'node:fs';
import { expect } from 'chai';
import { BACKINGS, makeBacking, titleOn } from '../support/backings.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { startOurTarget } from '../support/our-target.ts';
import { DEFAULT, everyKernel, SMALL_V6, side } from '../support/scenario.ts';

const MAKE = { ext4: 'mkfs.ext4 -q -F', xfs: 'mkfs.xfs -q -f' } as const;
const CHECK = { ext4: 'e2fsck -f -n', xfs: 'xfs_repair -n' } as const;
/** A tree of a few hundred files that every machine has. */
const TREE = '/usr/share/perl5';
const MEGABYTE = 1 << 20;

side('kernel host → our target on soft', (scenario) => {
  for (const kind of ['ext4', 'xfs'] as const) {
    for (const backing of BACKINGS) {
      scenario(
        `${kind}: make, copy a tree, check, mount again, compare${titleOn(backing)}`,
        {
          ...(kind === 'ext4' && backing === 'file' ? { core: [DEFAULT] } : {}),
          variants: backing === 'file' ? [...everyKernel(), SMALL_V6] : [DEFAULT],
          seconds: 300,
        },
        async (lab) => {
          const { path } = makeBacking(lab, backing, 'disk.img', 384 * MEGABYTE);
          await startOurTarget(lab, { path });
          const host = await KernelHost.prepare(lab);
          const device = await host.connectDevice();
          await host.guest.run(
            `modprobe ${kind}
             ${MAKE[kind]} ${device}
             mount ${device} /mnt
             cp -a ${TREE}/. /mnt/
             umount /mnt
             ${CHECK[kind]} ${device} 2>&1
             mount ${device} /mnt
             diff -r ${TREE} /mnt --exclude=lost+found
             umount /mnt`,
            280,
          );
          await host.disconnect();
        },
      );
    }
  }

  scenario(
    'discard and write zeroes through the filesystem free the backing file',
    { variants: everyKernel(), seconds: 240 },
    async (lab) => {
      const target = await startOurTarget(lab, { size: 256 * MEGABYTE });
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice();
      const allocated = (): number => statSync(target.file).blocks * 512;
      await host.guest.run(
        `modprobe ext4
         mkfs.ext4 -q -F -E nodiscard ${device}
         mount ${device} /mnt
         dd if=/dev/urandom of=/mnt/big bs=1M count=96 conv=fsync 2>&1`,
        200,
      );
      expect(allocated()).to.be.greaterThan(96 * MEGABYTE);
      await host.guest.run('rm /mnt/big; sync; fstrim -v /mnt');
      expect(allocated()).to.be.lessThan(32 * MEGABYTE);
      await host.guest.run('umount /mnt');
      // The whole device, by commands alone.
      await host.guest.run(
        `dd if=/dev/urandom of=${device} bs=1M count=32 oflag=direct 2>&1
         blkdiscard -z ${device}
         cmp -n ${256 * MEGABYTE} ${device} /dev/zero
         blkdiscard ${device}`,
        200,
      );
      expect(allocated()).to.be.lessThan(MEGABYTE);
    },
  );
});
