/**
 * Nothing leaks: the live counters of the native side, descriptors and memory are after many connections what they were
 * after few. Target and initiator live in this process, so that both sides are counted.
 */
import { expect } from 'chai';
import { readdirSync } from 'node:fs';
import { connect } from '../../initiator/index.ts';
import { acquireRuntime } from '../../native/shared-runtime.ts';
import { Target } from '../../target/index.ts';
import { loopbackAddress } from '../support/processes.ts';

const NQN = 'nqn.2026-11.io.nvmeof:leaks';
const ROUNDS = Number(process.env['NVMEOF_LEAK_ROUNDS'] ?? 2000);

function descriptors(): number {
  return readdirSync('/proc/self/fd').length;
}

function residentBytes(): number {
  global.gc?.();
  global.gc?.();
  return process.memoryUsage().rss;
}

describe('connecting and disconnecting', function () {
  this.timeout(300_000);

  it(`${ROUNDS} rounds leave counters, descriptors and memory as they were`, async () => {
    const lease = acquireRuntime();
    const address = loopbackAddress();
    const target = await Target.start({
      ports: [{ address }],
      subsystems: [{ nqn: NQN, namespaces: [{ memory: '16MiB' }] }],
    });
    const live = (): Record<string, number> =>
      Object.fromEntries(
        Object.entries(lease.runtime.door.counters()).filter(([name]) => name.startsWith('live.')),
      );
    async function rounds(count: number): Promise<void> {
      for (let i = 0; i < count; i++) {
        const controller = await connect({ address, nqn: NQN, keepAliveMs: 0 });
        const namespace = controller.namespace(1);
        await namespace.write(i % 100, Buffer.alloc(512, i));
        const back = await namespace.read(i % 100, 1);
        if (back[0] !== (i & 255)) throw new Error(`round ${i}: wrong data`);
        await controller.disconnect();
      }
    }
    await rounds(100);
    const counters = live();
    const files = descriptors();
    const memory = residentBytes();
    await rounds(ROUNDS);
    expect(live()).to.deep.equal(counters);
    expect(descriptors()).to.equal(files);
    // The heap's own noise; a leak of one queue's buffers a round would be hundreds of MiB.
    expect(residentBytes() - memory).to.be.lessThan(16 << 20);
    await target.close();
    lease.release();
  });
});
