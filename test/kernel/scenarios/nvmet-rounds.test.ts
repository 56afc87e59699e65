/** Connecting to the kernel's target and disconnecting, again and again: both sides have afterwards what they had before. */
import { readdirSync } from 'node:fs';
import { expect } from 'chai';
import { expectLiveCounters, liveCounters } from '../../support/counters.ts';
import { NvmetPeer } from '../support/nvmet-peer.ts';
import { DEFAULT, everyKernel, side, SMALL_V6 } from '../support/scenario.ts';

const WARM_UP_ROUNDS = 40;
const ROUNDS = 200;
/** A leaked queue is 45 to 175 KiB: two a round would be 18 MiB at least. */
const GROWTH_BYTES = 14 << 20;
/** Queue pairs, completion queues, memory regions and protection domains of the kernel, without what the drivers keep. */
const RESOURCES =
  'for kind in qp cq mr pd cm_id; do echo $kind $(rdma resource show $kind | wc -l); done';

side('our initiator on soft → kernel nvmet', (scenario) => {
  scenario(
    `${ROUNDS} rounds of connecting and disconnecting`,
    { variants: [...everyKernel(), { ...SMALL_V6, kernel: DEFAULT.kernel }], seconds: 300 },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const lease = peer.keepRuntime();
      const round = async (index: number): Promise<void> => {
        const controller = await peer.connect();
        const data = new Uint8Array(4096).fill(index);
        await controller.namespace(1).write(index, data);
        expect(Buffer.from(await controller.namespace(1).read(index, 8)).equals(data)).to.equal(
          true,
        );
        await controller.disconnect();
      };
      const before = liveCounters(lease);
      const resources = await peer.guest.run(RESOURCES);
      for (let index = 0; index < WARM_UP_ROUNDS; index++) await round(index);
      await expectLiveCounters(lease, before);
      const descriptors = readdirSync('/proc/self/fd').length;
      const resident = process.memoryUsage().rss;
      for (let index = 0; index < ROUNDS; index++) await round(index);
      await expectLiveCounters(lease, before);
      expect(readdirSync('/proc/self/fd').length).to.equal(descriptors);
      expect(process.memoryUsage().rss - resident).to.be.lessThan(GROWTH_BYTES);
      // The kernel clears up behind its back.
      await peer.guest.until(`[ "$(${RESOURCES})" = "${resources.trim()}" ]`);
    },
  );
});
