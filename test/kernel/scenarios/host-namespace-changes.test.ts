/** Namespaces that go, come back different, or are larger than 32 bits tell, as the kernel's host finds them. */
import { closeSync, openSync, readSync, statSync, writeSync } from 'node:fs';
import { setTimeout as delay } from 'node:timers/promises';
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { LiveTarget } from '../support/live-target.ts';
import { NQN, sparseFile, startOurTarget } from '../support/our-target.ts';
import { everyKernel, side } from '../support/scenario.ts';

const GIB = 1 << 30;
const BLOCK = 512;
const GAP_MS = 100;
const UUID = '2f0b4b9e-6a53-4a2f-8f5f-6f5b7d1c9a10';

side('kernel host → our target on soft', (scenario) => {
  scenario('one removal after the other is noticed', { variants: everyKernel() }, async (lab) => {
    const target = await LiveTarget.start(lab, {
      namespaces: [1, 2, 3, 4].map(() => ({ memory: '8MiB' })),
    });
    const host = await KernelHost.prepare(lab);
    await host.connect();
    await host.device(NQN, 4);
    const devices = await Promise.all([1, 2, 3].map((nsid) => host.device(NQN, nsid)));
    for (const nsid of [1, 2, 3]) {
      await target.call('removeNamespace', NQN, nsid);
      await delay(GAP_MS);
    }
    for (const device of devices) await host.guest.until(`[ ! -e ${device} ]`);
    await host.fio(
      await host.device(NQN, 4),
      '--rw=randwrite --bs=4k --size=256k --iodepth=4 --verify=crc32c',
    );
  });

  scenario(
    'a namespace comes back with other blocks under its UUID',
    { variants: everyKernel() },
    async (lab) => {
      const namespace = (blockSize: number): { nsid: number } & Record<string, unknown> => ({
        ...{ nsid: 1, uuid: UUID, memory: '8MiB', blockSize },
      });
      const target = await LiveTarget.start(lab, { namespaces: [namespace(512)] });
      const host = await KernelHost.prepare(lab);
      const controller = await host.connect();
      for (const blockSize of [4096, 512]) {
        await host.device();
        await target.call('removeNamespace', NQN, 1);
        await target.call('addNamespace', NQN, namespace(blockSize));
        await host.guest.until(
          `for disk in /sys/block/nvme*n1; do
             [ "$(cat $disk/queue/logical_block_size)" = ${blockSize} ] && [ -b /dev/\${disk##*/} ] && exit 0
           done
           exit 1`,
        );
        const device = await host.device();
        expect(await host.guest.run(`cat /sys/block/${device.slice(5)}/uuid`)).to.include(UUID);
        await host.fio(device, '--rw=randwrite --bs=4k --size=256k --iodepth=4 --verify=crc32c');
      }
      expect(await host.state(controller)).to.equal('live');
    },
  );

  scenario(
    'ranges longer than 4 GiB are discarded whole',
    { variants: everyKernel() },
    async (lab) => {
      const file = sparseFile(lab, 'disk.img', 8 * GIB);
      // A block on either side of each border that a 32-bit count of bytes would fold, and the outermost.
      const inside = [0, 0.5, 4, 4.25].map((gib) => gib * GIB);
      const outside = [4.5, 7.5].map((gib) => gib * GIB);
      const mark = Buffer.alloc(4096, 0xa5);
      const handle = openSync(file, 'r+');
      lab.defer(() => {
        closeSync(handle);
        return undefined;
      });
      for (const offset of [...inside, ...outside]) writeSync(handle, mark, 0, mark.length, offset);
      const marked = (offset: number): boolean => {
        const back = Buffer.alloc(mark.length);
        readSync(handle, back, 0, back.length, offset);
        return back.equals(mark);
      };
      await startOurTarget(lab, { path: file });
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice();
      await host.guest.run(`nvme dsm ${device} -n 1 --ad -s 0 -b ${(4.5 * GIB) / BLOCK}`);
      expect(inside.map(marked), 'inside the range').to.deep.equal(inside.map(() => false));
      expect(outside.map(marked), 'outside of it').to.deep.equal(outside.map(() => true));
      await host.guest.run(`blkdiscard ${device}`);
      expect(outside.map(marked), 'the whole device').to.deep.equal(outside.map(() => false));
      expect(statSync(file).blocks * 512).to.be.lessThan(64 << 10);
    },
  );
});
