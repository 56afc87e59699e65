/** What one turn of JavaScript submits goes to the reactors in batches: nothing is left behind, and nothing overtakes it. */
import { expect } from 'chai';
import { CommandAbortedError, DisconnectedError } from '../../initiator/index.ts';
import { keepLiveCounters } from '../support/counters.ts';
import { failureOf, randomBytes, withTarget, type ScopeOptions } from '../support/in-process.ts';

const BLOCK = 512 as const;
const BLOCKS = 512;
const DISK = { namespaces: [{ memory: BLOCKS * BLOCK, blockSize: BLOCK }] } satisfies ScopeOptions;

describe('submissions of one turn', function () {
  this.timeout(30_000);
  keepLiveCounters();

  for (const count of [1, 2, 16, 17, 18, 200]) {
    it(`${count} of them are all answered, on two queues`, () =>
      withTarget(DISK, async (scope) => {
        const controller = await scope.connect({ queues: 2, depth: 64 });
        const namespace = controller.namespace(1);
        const written = randomBytes(BLOCKS * BLOCK);
        await namespace.write(0, written);
        const blocks = await Promise.all(
          Array.from({ length: count }, (_, lba) => namespace.read(lba, 1)),
        );
        const expected = written.subarray(0, count * BLOCK);
        expect(Buffer.concat(blocks).equals(expected)).to.equal(true);
      }));
  }

  it('one given up at once is given up after it was submitted', () =>
    withTarget(DISK, async (scope) => {
      const controller = await scope.connect({ depth: 64 });
      const namespace = controller.namespace(1);
      const giveUp = new AbortController();
      const kept = Array.from({ length: 20 }, (_, lba) => namespace.read(lba, 1));
      const dropped = namespace.read(20, 1, { signal: giveUp.signal });
      giveUp.abort();
      const error = await failureOf(dropped);
      expect(error).to.be.instanceOf(CommandAbortedError);
      await (error as CommandAbortedError).released;
      expect(await Promise.all(kept)).to.have.length(20);
    }));

  it('a disconnect behind them lets none of them hang', () =>
    withTarget(DISK, async (scope) => {
      const controller = await scope.connect({ depth: 64 });
      const namespace = controller.namespace(1);
      const reads = Array.from({ length: 40 }, (_, lba) => namespace.read(lba, 1));
      const ended = Promise.allSettled(reads);
      await controller.disconnect();
      for (const end of await ended) {
        if (end.status === 'rejected') expect(end.reason).to.be.instanceOf(DisconnectedError);
      }
    }));
});
