/**
 * One initiator process of the data-integrity run: random reads and writes of random sizes in its own region, with many
 * commands outstanding, each read checked against a model of the region kept here. At the end it reads its region back and
 * writes the model's SHA-256 to stdout.
 *   integrity-worker.ts ADDRESS NQN NSID FIRST_LBA BLOCKS SECONDS SEED [no-compare]
 */
import { createHash } from 'node:crypto';
import { connect } from '../../initiator/index.ts';

const [address = '', nqn = '', nsid, firstLba, blocks, seconds, seed, more] = process.argv.slice(2);
/** Not every controller knows Compare. */
const compares = more !== 'no-compare';
const OUTSTANDING = 64;
const BLOCKS_MAX = 300; // beyond in-capsule size, odd lengths, several packets

let state = Number(seed) >>> 0 || 1;
function random(limit: number): number {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) % limit;
}

const controller = await connect({ address, nqn, depth: OUTSTANDING + 1 });
const namespace = controller.namespace(Number(nsid));
const size = namespace.lbaSize;
const count = Number(blocks);
const first = Number(firstLba);
const model = Buffer.alloc(count * size);
const busy = new Uint8Array(count);
const deadline = Date.now() + Number(seconds) * 1000;
let commands = 0;

/** A free range, or undefined when a random place is taken: ranges in flight never overlap. */
function takeRange(): { at: number; length: number } | undefined {
  const length = 1 + random(random(4) === 0 ? BLOCKS_MAX : 16);
  const at = random(count - length + 1);
  for (let i = at; i < at + length; i++) if (busy[i]) return undefined;
  busy.fill(1, at, at + length);
  return { at, length };
}

async function one(): Promise<void> {
  const range = takeRange();
  if (!range) {
    await new Promise((resolve) => setImmediate(resolve));
    return;
  }
  const { at, length } = range;
  const part = model.subarray(at * size, (at + length) * size);
  const kind = random(20);
  if (kind < 9) {
    const data = Buffer.alloc(length * size);
    for (let i = 0; i < data.length; i += 4) data.writeUInt32LE(random(0xffffffff), i);
    await namespace.write(first + at, data, { fua: kind === 0 });
    data.copy(part);
  } else if (kind === 9) {
    await namespace.writeZeroes(first + at, length);
    part.fill(0);
  } else if (kind === 10 && compares) {
    await namespace.compare(first + at, part);
  } else {
    const data = await namespace.read(first + at, length);
    if (!part.equals(data)) {
      const wrong = data.findIndex((byte, i) => byte !== part[i]);
      throw new Error(
        `LBA ${first + at} + ${length}: byte ${wrong} is ${String(data[wrong])}, not ${String(part[wrong])}`,
      );
    }
  }
  busy.fill(0, at, at + length);
  commands++;
}

async function lane(): Promise<void> {
  while (Date.now() < deadline) await one();
}

// What other runs left there is not ours to judge: begin with zeros.
for (let at = 0; at < count; at += 1024) {
  await namespace.writeZeroes(first + at, Math.min(1024, count - at));
}
await Promise.all(Array.from({ length: OUTSTANDING }, lane));
await namespace.flush();
for (let at = 0; at < count; at += 256) {
  const length = Math.min(256, count - at);
  const data = await namespace.read(first + at, length);
  if (!model.subarray(at * size, (at + length) * size).equals(data)) {
    throw new Error(`read back: difference within ${length} blocks from LBA ${first + at}`);
  }
}
await controller.disconnect();
const sha256 = createHash('sha256').update(model).digest('hex');
process.stdout.write(JSON.stringify({ commands, sha256 }) + '\n');
