/** fio on the kernel's host, its data checked by fio and the backing file's own hash compared outside the guest. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { pipeline } from 'node:stream/promises';
import { expect } from 'chai';
import { BACKINGS, makeBacking, titleOn } from '../support/backings.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { startOurTarget } from '../support/our-target.ts';
import { DEFAULT, everyVariant, side, SMALL_V6 } from '../support/scenario.ts';

async function sha256(file: string): Promise<string> {
  const hash = createHash('sha256');
  await pipeline(createReadStream(file), hash);
  return hash.digest('hex');
}

side('kernel host → our target on soft', (scenario) => {
  for (const kind of BACKINGS) {
    scenario(
      `fio verifies what it wrote, and the backing file has it${titleOn(kind)}`,
      {
        ...(kind === 'file'
          ? { core: [DEFAULT, SMALL_V6], variants: everyVariant() }
          : { variants: [DEFAULT] }),
        seconds: 300,
      },
      async (lab) => {
        const { path, file } = makeBacking(lab, kind, 'disk.img', 64 << 20);
        await startOurTarget(lab, { path });
        const host = await KernelHost.prepare(lab);
        const device = await host.connectDevice();
        await host.fio(
          device,
          '--rw=randwrite --bsrange=512-128k --bs_unaligned=0 --blockalign=512 --iodepth=64 --numjobs=2 ' +
            '--size=12m --offset_increment=16m --verify=crc32c --group_reporting',
          240,
        );
        const seen = (
          await host.guest.run(`nvme flush ${device} -n 1 && sha256sum ${device}`, 120)
        ).split(/\s+/);
        expect(seen).to.include(await sha256(file));
        await host.disconnect();
      },
    );
  }
});
