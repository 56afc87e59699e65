/** Connecting to the kernel's target and disconnecting, again and again: both sides have afterwards what they had before. */
import { expectNoLeaks } from '../../support/leaks.ts';
import { NQN, NvmetPeer } from '../support/nvmet-peer.ts';
import { DEFAULT, everyKernel, side, SMALL_V6 } from '../support/scenario.ts';

const ROUNDS = 600;
/** Queue pairs, completion queues, memory regions and protection domains of the kernel. */
const RESOURCES =
  'for kind in qp cq mr pd cm_id; do echo $kind $(rdma resource show $kind | wc -l); done';

side('our initiator on soft → kernel nvmet', (scenario) => {
  scenario(
    `${ROUNDS} rounds of connecting and disconnecting`,
    { variants: [...everyKernel(), { ...SMALL_V6, kernel: DEFAULT.kernel }], seconds: 300 },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      // The first connection fills the kernel's pool of completion queues, which stays.
      await (await peer.connect()).disconnect();
      await peer.guest.until('[ "$(rdma resource show cm_id | wc -l)" = 1 ]');
      const resources = await peer.guest.run(RESOURCES);
      await expectNoLeaks(peer.address, ROUNDS, NQN);
      // The kernel clears up behind its back.
      await peer.guest.run(
        `late=$(($(date +%s) + 30))
         while [ "$(date +%s)" -lt $late ]; do
           now=$(${RESOURCES})
           [ "$now" != "${resources.trim()}" ] || exit 0
           sleep 0.2
         done
         echo "before: ${resources.trim()}; now: $now"
         rdma resource show qp; rdma resource show cm_id
         exit 1`,
        60,
      );
    },
  );
});
