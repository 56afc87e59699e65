/**
 * Reads through the library, from one JavaScript thread: `depth` loops that await `namespace.read` into buffers of the pool. A
 * process of its own; prints JSON.
 *   javascript-load.js ADDRESS NQN DEPTH SECONDS CORES
 */
import { stdout } from 'node:process';
import { connect } from '../../initiator/index.ts';

const [address = '', nqn = '', depth = '128', seconds = '2', cores = '0'] = process.argv.slice(2);
const BYTES = 4096;
const WARM_UP_MS = 500;

const controller = await connect({
  ...{ address, nqn, depth: Number(depth) + 1, queues: cores.split(',').length },
  cores: cores.split(',').map(Number),
});
const namespace = controller.namespace(1);
const blocks = BYTES / namespace.lbaSize;
const places = Number(namespace.lbaCount) / blocks;
const startedAt = performance.now() + WARM_UP_MS;
const endsAt = startedAt + Number(seconds) * 1000;
let commands = 0;

async function loop(): Promise<void> {
  const buffer = controller.allocateBuffer(BYTES);
  for (let now = performance.now(); now < endsAt; now = performance.now()) {
    const lba = Math.floor(Math.random() * places) * blocks;
    await namespace.read(lba, blocks, { buffer: buffer.bytes });
    if (now >= startedAt) commands += 1;
  }
  buffer.release();
}

await Promise.all(Array.from({ length: Number(depth) }, loop));
const iops = commands / Number(seconds);
await controller.disconnect();
stdout.write(`${JSON.stringify({ iops, bandwidth: iops * BYTES })}\n`);
