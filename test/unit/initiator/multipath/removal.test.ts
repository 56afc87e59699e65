/** Paths that are added and removed, and the end of it all: from whichever state, nothing is left. */
import { expect } from 'chai';
import { rejection, settle } from '../support.ts';
import {
  A,
  B,
  MultipathEvents,
  PATH_A,
  PATH_B,
  SLACK_MS,
  outcomeOf,
  statesOf,
  withFabric,
} from './fabric.ts';

const QUIET = { keepAliveMs: 0 };

describe('a path that is added or removed', () => {
  it('is reset when it is live, not before it is back', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({
        ...QUIET,
        paths: [{ address: A }],
        reconnectDelayMs: 1000,
      });
      subsystem.resetPath(PATH_A);
      expect(subsystem.paths[0]).to.include({ state: 'reconnecting', reason: 'reset by the user' });
      expect(() => {
        subsystem.resetPath(PATH_A);
      }).to.throw(/is reconnecting, not live/);
      await fabric.pass(1000);
      expect(subsystem.paths[0]).to.include({ state: 'live', attempts: 0 });
      expect(subsystem.paths[0]?.nextAttemptMs).to.equal(undefined);
      await subsystem.disconnect();
    });
  });

  it('is refused when it is there already', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect();
      const error = await rejection(subsystem.addPath({ address: A }), Error);
      expect(error.message).to.match(/there is a path 192\.0\.2\.11:4420 already; it is live/);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      await subsystem.disconnect();
    });
  });

  it('twice at a time is removed once, and its place is free afterwards', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect();
      const operations: number[] = [];
      fabric.door.onOperation = (_name, operation) => operations.push(operation);
      const both = [subsystem.removePath(PATH_A), subsystem.removePath(PATH_A)];
      const outcomes = both.map(outcomeOf);
      await settle();
      expect(outcomes.map(({ now }) => now)).to.deep.equal(['pending', 'pending']);
      expect(statesOf(subsystem)).to.deep.equal(['removing', 'live']);
      fabric.door.onOperation = undefined;
      for (const operation of operations) fabric.door.endOperation(operation);
      await Promise.all(both);
      expect(statesOf(subsystem)).to.deep.equal(['live']);
      await subsystem.addPath({ address: A });
      await subsystem.disconnect();
    });
  });

  it('never has the incarnation of one that had its place before', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect();
      for (const endpoint of [PATH_A, PATH_B, PATH_A]) {
        await subsystem.removePath(endpoint);
        await subsystem.addPath({ address: endpoint.split(':')[0] ?? '' });
      }
      const seen = fabric.door
        .callsOf('setPath')
        .map(({ args }) => args as [number, number, { queue: number; incarnation: number }])
        .map(([, path, { queue, incarnation }]) => [`${path}/${incarnation}`, queue] as const);
      // One place and incarnation is one queue.
      expect(new Set(seen.map(([key]) => key)).size).to.equal(new Set(seen.map(String)).size);
      await subsystem.disconnect();
    });
  });

  it('lets the writes of its last life go by its own fence only', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ keepAliveMs: 5000, reconnectDelayMs: 1000 });
      const events = new MultipathEvents(subsystem);
      const releases = (): unknown[] =>
        fabric.door.callsOf('releasePath').map(({ args }) => args.slice(1));
      fabric.a.die();
      await fabric.pass(4000);
      await subsystem.removePath(PATH_A);
      fabric.a.unreachable = false;
      await subsystem.addPath({ address: A });
      fabric.a.die();
      await settle();
      // Twice the keep alive timeout after each loss (docs/stale-writes.md).
      await fabric.pass(6000 + SLACK_MS);
      expect(releases()).to.deep.equal([[0, 1, true]]);
      await fabric.pass(4000);
      expect(releases()).to.deep.equal([
        [0, 1, true],
        [0, 3, true],
      ]);
      expect(events.released.map(([endpoint]) => endpoint)).to.deep.equal([PATH_A, PATH_A]);
      await subsystem.disconnect();
    });
  });

  it('lets no write go before those of its earlier lives, whose controllers may end later', async () => {
    await withFabric(async (fabric) => {
      // KAS of 10 s: the first controller has ended 20 s after its loss, the second after 10 s.
      fabric.a.controller = { ...fabric.a.controller, kas: 100 };
      const subsystem = await fabric.connect({ keepAliveMs: 5000, reconnectDelayMs: 1000 });
      const releases = (): unknown[] =>
        fabric.door.callsOf('releasePath').map(({ args }) => args.slice(1));
      fabric.a.controller = { ...fabric.a.controller, kas: 10 };
      fabric.a.cut();
      await fabric.pass(1500);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      fabric.a.die();
      await fabric.pass(18_000);
      expect(releases()).to.deep.equal([]);
      await fabric.pass(500 + SLACK_MS);
      expect(releases()).to.deep.equal([
        [0, 1, true],
        [0, 3, true],
      ]);
      await subsystem.disconnect();
    });
  });

  it('ends although its controller is silent: an overdue command gives it up', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      fabric.a.fallSilent();
      const [queue] = fabric.door.pathQueues.keys();
      if (queue === undefined) throw new Error('no queue');
      const operations: number[] = [];
      fabric.door.onOperation = (_name, operation) => operations.push(operation);
      const removed = outcomeOf(subsystem.removePath(PATH_A));
      await fabric.pass(1000);
      expect(removed.now).to.equal('pending');
      fabric.door.emit({ kind: 'pathOverdue', queue, path: 0, incarnation: 1 });
      await settle();
      fabric.door.onOperation = undefined;
      for (const operation of operations) fabric.door.endOperation(operation);
      await settle();
      expect(removed.now).to.equal('resolved');
      await subsystem.disconnect();
    });
  });
});

describe('disconnect', () => {
  const AT = ['Connect 0', 'Get CSTS', 'identify 01', 'Connect 1', 'identify 02', 'getLogPage 0c'];
  for (const last of AT) {
    it(`leaves nothing while a path waits for ${last}`, async () => {
      await withFabric(async (fabric) => {
        fabric.b.stopAt(last);
        const subsystem = await fabric.connect({ ...QUIET, commandTimeoutMs: 0 });
        expect(statesOf(subsystem)).to.deep.equal(['live', 'connecting']);
        await subsystem.disconnect();
      });
    });
    it(`leaves nothing while a lost path waits for ${last}`, async () => {
      await withFabric(async (fabric) => {
        const options = { ...QUIET, commandTimeoutMs: 0, reconnectDelayMs: 1000 };
        const subsystem = await fabric.connect(options);
        fabric.b.cut();
        await settle();
        fabric.b.stopAt(last);
        await fabric.pass(1000);
        expect(statesOf(subsystem)).to.deep.equal(['live', 'reconnecting']);
        await subsystem.disconnect();
      });
    });
  }

  it('leaves nothing while paths are lost, changing, failed or being removed', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, fastIoFailMs: 60_000 });
      fabric.a.changeAna('change');
      fabric.b.die();
      await settle();
      const read = outcomeOf(subsystem.namespace(1).read(0, 1));
      await settle();
      expect(fabric.parked).to.equal(1);
      const removing = subsystem.removePath(PATH_A);
      await subsystem.disconnect();
      await removing;
      await settle();
      expect(read.now).to.match(/Read/);
    });
  });

  it('twice is once', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect();
      await Promise.all([subsystem.disconnect(), subsystem.disconnect()]);
      await rejection(
        Promise.resolve().then(() => subsystem.addPath({ address: B })),
        Error,
      );
    });
  });
});
