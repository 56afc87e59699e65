/**
 * Several hosts in one process, each with a controller and a source address of its own, that write as fast as they can
 * until the process is killed. Ends with exit code 1 and the error when one of them fails.
 *   load-worker.ts ADDRESS NQN HOSTS BYTES QUEUE_DEPTH
 */
import { connect } from '../../initiator/index.ts';

const [address = '', nqn = '', hosts, bytes, depth] = process.argv.slice(2);
const blockBytes = Number(bytes);
const queueDepth = Number(depth);
const RUNTIME_MS = 600_000;

const controllers = await Promise.all(
  Array.from({ length: Number(hosts) }, () => connect({ address, nqn, depth: queueDepth + 1 })),
);
await Promise.all(
  controllers.map(async (controller, i) => {
    const { lbaSize, lbaCount } = controller.namespace(1);
    const { write } = await controller.bench({
      nsid: 1,
      pattern: 'randwrite',
      readPercent: 0,
      blockBytes,
      queueDepth,
      firstLba: 0n,
      lbaCount: lbaCount - (lbaCount % BigInt(blockBytes / lbaSize)),
      runtimeMs: RUNTIME_MS,
      commandCount: 0n,
      warmupMs: 0,
      verify: false,
      bufferArenaBytes: blockBytes * queueDepth,
      seed: BigInt(i + 1),
    });
    if (write.errors > 0n) throw new Error(`host ${i}: ${write.errors} writes failed`);
  }),
);
