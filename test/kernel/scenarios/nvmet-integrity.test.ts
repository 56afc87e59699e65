/**
 * Data of our initiator on the kernel's target: several queues and depths, the load generator's own check at queue depth 64,
 * and random sizes against a model, whose hash the device in the guest has too.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { expect } from 'chai';
import type { Controller } from '../../../initiator/index.ts';
import { NQN, NvmetPeer } from '../support/nvmet-peer.ts';
import { everyKernel, everyVariant, side } from '../support/scenario.ts';

const WORKER = fileURLToPath(new URL('../../support/integrity-worker.ts', import.meta.url));
const BLOCK = 512;
const REGION_BYTES = 8 << 20;
const WORKER_SECONDS = 8;
const BENCH_MS = 1500;

async function verifiedBench(
  controller: Controller,
  blockBytes: number,
  queueDepth: number,
): Promise<void> {
  const result = await controller.bench({
    nsid: 1,
    pattern: 'randrw',
    readPercent: 50,
    blockBytes,
    queueDepth,
    firstLba: 0n,
    lbaCount: (BigInt(((16 << 20) / blockBytes) * (blockBytes / BLOCK)) / 8n) * 8n,
    runtimeMs: BENCH_MS,
    commandCount: 0n,
    warmupMs: 0,
    verify: true,
    bufferArenaBytes: 16 << 20,
    seed: 1n,
  });
  const what = `${blockBytes} bytes at queue depth ${queueDepth}: ${result.firstError}`;
  expect(result.verifyErrors, what).to.equal(0n);
  expect(result.read.errors + result.write.errors, what).to.equal(0n);
  expect(result.read.commands > 0n && result.write.commands > 0n, what).to.equal(true);
}

/** Random sizes, random data, queue depth 64; resolves with the hash of what the region holds then. */
async function runWorker(address: string): Promise<{ commands: number; sha256: string }> {
  const args = [address, NQN, 1, 0, REGION_BYTES / BLOCK, WORKER_SECONDS, 7, 'no-compare'].map(
    String,
  );
  const child = spawn(process.execPath, ['--import', 'tsx', WORKER, ...args], {
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  let out = '';
  let error = '';
  child.stdout.on('data', (chunk: Buffer) => (out += chunk.toString()));
  child.stderr.on('data', (chunk: Buffer) => (error += chunk.toString()));
  const [code] = (await once(child, 'close')) as [number | null];
  if (code !== 0) throw new Error(`the worker ended with ${String(code)}:\n${error}`);
  return JSON.parse(out) as { commands: number; sha256: string };
}

side('our initiator on soft → kernel nvmet', (scenario) => {
  scenario(
    'random sizes at queue depth 64, the device has what the model has',
    { variants: everyVariant(), seconds: 180 },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const { commands, sha256 } = await runWorker(peer.address);
      expect(commands).to.be.greaterThan(100);
      const seen = await peer.guest.run(
        `dd if=${peer.device} bs=1M count=${REGION_BYTES >> 20} iflag=direct | sha256sum`,
      );
      expect(seen).to.include(sha256);
    },
  );

  scenario(
    'bench verifies every size at queue depth 64',
    { variants: everyVariant({ family: 'IPv4' }), seconds: 180 },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const controller = await peer.connect({ queues: 2, depth: 128 });
      for (const blockBytes of [512, 4096, 4608, 7680, 65536, 131072]) {
        await verifiedBench(controller, blockBytes, 64);
      }
      expect(controller.state).to.equal('live');
    },
  );

  scenario('queues and depths', { variants: everyKernel(), seconds: 180 }, async (lab) => {
    const peer = await NvmetPeer.start(lab);
    for (const [queues, depth] of [
      [1, 2],
      [1, 128],
      [2, 33],
      [4, 16],
      [8, 64],
    ] as const) {
      const controller = await peer.connect({ queues, depth });
      expect(controller.queues.map(({ entries }) => entries)).to.deep.equal(
        Array(queues).fill(depth),
      );
      await verifiedBench(controller, 4096, Math.min(depth - 1, 32));
      await controller.disconnect();
    }
  });

  scenario(
    'asks for more queues and entries than there are',
    { variants: everyKernel() },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      await peer.guest.run(`echo 2 >/sys/kernel/config/nvmet/subsystems/${NQN}/attr_qid_max`);
      const controller = await peer.connect({ queues: 16, depth: 1024 });
      expect(controller.queues).to.have.length(2);
      const { mqes } = controller.properties.cap;
      expect(mqes, 'the kernel has shorter queues').to.be.lessThan(1023);
      for (const { entries } of controller.queues) expect(entries).to.equal(mqes + 1);
      await verifiedBench(controller, 4096, 64);
    },
  );
});
