/** What a controller may be when it is connected again. */
import { expect } from 'chai';
import type { PathOptions, QueueId } from '../../../../native/index.ts';
import { settle } from '../support.ts';
import type { Fabric } from './fabric.ts';
import { A, SLACK_MS, statesOf, withFabric } from './fabric.ts';

const ONE_PATH = { paths: [{ address: A }] };
const QUIET = { keepAliveMs: 0 };

/** The I/O queues that the paths of this queue over several led to, in time. */
function realQueues(fabric: Fabric, queue: QueueId | undefined): QueueId[] {
  return fabric.door
    .callsOf('setPath')
    .filter(({ args }) => args[0] === queue)
    .map(({ args }) => (args[2] as PathOptions).queue);
}

/** The queues over several paths that commands were given to, in time. */
function submittedTo(fabric: Fabric): QueueId[] {
  return [...fabric.door.callsOf('submit'), ...fabric.door.callsOf('submitBuffer')]
    .map(({ args }) => (args[0] as { readonly queue: QueueId }).queue)
    .filter((queue) => fabric.door.pathQueues.has(queue));
}

describe('a controller that comes back', () => {
  it('may have fewer queues, another depth and another id', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...ONE_PATH, queues: 4, reconnectDelayMs: 1000 });
      expect(subsystem.paths[0]).to.include({ queues: 4, cntlid: 1 });
      fabric.a.cut();
      fabric.a.queuesGranted = 1;
      fabric.a.cap = { ...fabric.a.cap, mqes: 31 };
      fabric.a.setCntlid(77);
      await fabric.pass(1000);
      expect(subsystem.paths[0]).to.include({ state: 'live', queues: 1, cntlid: 77 });
      await subsystem.namespace(1).read(0, 1);
      await subsystem.disconnect();
    });
  });

  it('may grant fewer queues than there are reactors: the others lead to those there are, and nothing is attached to them', async () => {
    await withFabric(async (fabric) => {
      fabric.a.queuesGranted = fabric.b.queuesGranted = 1;
      const subsystem = await fabric.connect({ cores: [0, 1] });
      const [first, second] = [...fabric.door.pathQueues.keys()];
      const attachment = subsystem.attach(1);
      const [options] = fabric.door.callsOf('attach')[0]?.args as [{ queues: readonly number[] }];
      expect(options.queues).to.deep.equal([first]);
      expect(realQueues(fabric, second), 'what the other reactor leads to').to.deep.equal(
        realQueues(fabric, first),
      );
      for (let index = 0; index < 4; index += 1) await subsystem.namespace(1).read(0, 1);
      expect(submittedTo(fabric)).to.deep.equal([first, first, first, first]);
      await attachment.detach();
      await subsystem.disconnect();
    });
  });

  it('may grant fewer queues than before: reactors that lose theirs go by way of the others, until they have one again', async () => {
    await withFabric(async (fabric) => {
      const options = { ...ONE_PATH, cores: [0, 1], queues: 2, reconnectDelayMs: 1000 };
      const subsystem = await fabric.connect(options);
      const [first, second] = [...fabric.door.pathQueues.keys()];
      const place = (queue?: QueueId): number | undefined => realQueues(fabric, queue).at(-1);
      expect(place(first)).not.to.equal(place(second));
      fabric.a.cut();
      fabric.a.queuesGranted = 1;
      await fabric.pass(1000);
      expect(subsystem.paths[0]).to.include({ state: 'live', queues: 1 });
      expect(place(second)).to.equal(place(first));
      fabric.a.cut();
      fabric.a.queuesGranted = 2;
      await fabric.pass(1000);
      expect(place(first)).not.to.equal(place(second));
      await subsystem.disconnect();
    });
  });

  it('but never answers costs its attempt, wherever it stops', async () => {
    for (const last of ['Connect 0', 'identify 01', 'Connect 1', 'getLogPage 0c']) {
      await withFabric(async (fabric) => {
        const subsystem = await fabric.connect({
          ...QUIET,
          ...ONE_PATH,
          reconnectDelayMs: 1000,
          connectTimeoutMs: 2000,
          commandTimeoutMs: 0,
        });
        fabric.a.cut();
        await settle();
        fabric.a.stopAt(last);
        const before = fabric.a.attempts;
        await fabric.pass(1000 + 2000 + SLACK_MS);
        expect(statesOf(subsystem), last).to.deep.equal(['reconnecting']);
        fabric.a.speak();
        // The attempt that runs gets no answer any more, the next one does.
        await fabric.pass(2000 + 1000 + SLACK_MS);
        expect(statesOf(subsystem), last).to.deep.equal(['live']);
        expect(fabric.a.attempts, last).to.be.greaterThan(before + 1);
        await subsystem.disconnect();
      });
    }
  });

  it('is given up after ctrlLossMs also while its ANA log is waited for', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({
        ...QUIET,
        ...ONE_PATH,
        reconnectDelayMs: 1000,
        ctrlLossMs: 2000,
      });
      fabric.a.cut();
      await settle();
      fabric.a.stopAt('getLogPage 0c');
      await fabric.pass(2000 + SLACK_MS);
      expect(statesOf(subsystem)).to.deep.equal(['failed']);
      expect(fabric.door.queues.size, 'the queue of the namespace').to.equal(1);
      await subsystem.disconnect();
    });
  });
});
