/** Wireshark reads what our target and a kernel host say to each other, on the network and in our own capture file. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { capture } from '../support/network.ts';
import { startOurTarget } from '../support/our-target.ts';
import { everyVariant, side } from '../support/scenario.ts';
import { countFrames, malformedKinds } from '../support/tshark.ts';

const KERNELS_CAPTURES = fileURLToPath(new URL('../../fixtures/captures/', import.meta.url));

/** Data of Identify and of log pages that is spread over several packets, which the dissector takes for a capsule. */
function kindsOfKernels(): Set<string> {
  const files = readdirSync(KERNELS_CAPTURES).filter((name) => name.endsWith('.pcap'));
  return new Set(files.flatMap((name) => malformedKinds(join(KERNELS_CAPTURES, name))));
}

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'tshark decodes the traffic, on the network and of --pcap',
    { variants: everyVariant() },
    async (lab) => {
      const pcap = join(lab.folder, 'target.pcap');
      const target = await startOurTarget(lab, { args: ['--pcap', pcap] });
      const host = await KernelHost.prepare(lab);
      const onNetwork = await capture(join(lab.folder, 'network.pcap'), {
        whole: true,
        ...(lab.seats[0] ? { device: lab.seats[0].port.tap } : {}),
      });
      const device = await host.connectDevice();
      await host.guest.run(`
      nvme id-ctrl ${device}; nvme smart-log ${device}; nvme effects-log ${device} -c 0
      dd if=/dev/urandom of=${device} bs=64k count=4 oflag=direct 2>&1
      dd if=${device} of=/dev/null bs=64k count=4 iflag=direct 2>&1
      blkdiscard ${device}`);
      await host.disconnect();
      await target.process.stop('SIGTERM');
      await onNetwork.stop();
      const known = kindsOfKernels();
      for (const file of [onNetwork.file, pcap]) {
        const strange = malformedKinds(file).filter((kind) => !known.has(kind));
        expect(strange, file).to.deep.equal([]);
        // SEND Only, SEND Only with Invalidate: capsules
        expect(countFrames(file, 'infiniband.bth.opcode == 4 && nvme'), file).to.be.greaterThan(20);
        expect(countFrames(file, 'infiniband.bth.opcode == 23 && nvme'), file).to.be.greaterThan(8);
        expect(countFrames(file, 'infiniband.mad.attributeid == 0x15'), file).to.be.greaterThan(2);
      }
    },
  );
});
