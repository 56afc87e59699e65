/** Paths that are lost, come back, or do not: every timer on a clock turned by hand. */
import { expect } from 'chai';
import { NvmeStatusError } from '../../../../native/common/errors.ts';
import { ConnectError } from '../../../../initiator/errors.ts';
import { rejection, settle } from '../support.ts';
import {
  A,
  MultipathEvents,
  PATH_A,
  PATH_B,
  SLACK_MS,
  outcomeOf,
  stateOf,
  statesOf,
  withFabric,
} from './fabric.ts';

const ANA_INACCESSIBLE = 0x302;
const INTERNAL_PATHING = 0x300;
const ONE_PATH = { paths: [{ address: A }] };
const QUIET = { keepAliveMs: 0 };

describe('a path that is lost', () => {
  it('is tried again after the delay, which chance only shortens', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH, reconnectDelayMs: 10_000 });
      for (let round = 0; round < 5; round += 1) {
        fabric.a.cut();
        await settle();
        expect(statesOf(subsystem)).to.deep.equal(['reconnecting']);
        await fabric.pass(4950);
        expect(statesOf(subsystem), 'half of it at least').to.deep.equal(['reconnecting']);
        await fabric.pass(5050 + SLACK_MS);
        expect(statesOf(subsystem)).to.deep.equal(['live']);
      }
      await subsystem.disconnect();
    });
  });

  it('is tried at the same pace while it stays away', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH, reconnectDelayMs: 1000 });
      const before = fabric.a.attempts;
      fabric.a.die();
      await fabric.pass(20_000);
      expect(fabric.a.attempts - before).to.be.within(19, 40);
      const [path] = subsystem.paths;
      expect(path?.attempts).to.equal(fabric.a.attempts - before);
      expect(path?.nextAttemptMs).to.be.within(0, 1000);
      await subsystem.disconnect();
    });
  });

  it('waits for the delay again after an attempt that took longer', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({
        ...QUIET,
        ...ONE_PATH,
        reconnectDelayMs: 1000,
        connectTimeoutMs: 2000,
      });
      const before = fabric.a.attempts;
      fabric.a.fallSilent();
      fabric.a.cut();
      await fabric.pass(30_000);
      // Each takes 2 s and is followed by half a second to a second; one after the other it would be 15.
      expect(fabric.a.attempts - before).to.be.within(9, 13);
      fabric.a.speak();
      await subsystem.disconnect();
    });
  });

  it('is given up at once with ctrlLossMs 0', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...ONE_PATH, ctrlLossMs: 0 });
      const waiting = subsystem.namespace(1);
      fabric.a.cut();
      await settle();
      expect(statesOf(subsystem)).to.deep.equal(['failed']);
      await rejection(waiting.read(0, 1), NvmeStatusError);
      await subsystem.disconnect();
    });
  });

  it('is given up after ctrlLossMs, and never tried again', async () => {
    await withFabric(async (fabric) => {
      const options = { ...QUIET, ...ONE_PATH, reconnectDelayMs: 1000, ctrlLossMs: 5000 };
      const subsystem = await fabric.connect(options);
      fabric.a.die();
      await settle();
      const read = outcomeOf(subsystem.namespace(1).read(0, 1));
      await fabric.pass(4950);
      expect([...statesOf(subsystem), read.now]).to.deep.equal(['reconnecting', 'pending']);
      await fabric.pass(50 + SLACK_MS);
      expect(statesOf(subsystem)).to.deep.equal(['failed']);
      expect(subsystem.paths[0]?.reason).to.match(/no route.*given up after 5000 ms/);
      expect(read.now).to.match(/Read/);
      const { attempts } = fabric.a;
      await fabric.pass(10_000);
      expect(fabric.a.attempts).to.equal(attempts);
      await subsystem.disconnect();
    });
  });

  it('is tried for ever with ctrlLossMs -1', async () => {
    await withFabric(async (fabric) => {
      const options = { ...QUIET, ...ONE_PATH, reconnectDelayMs: 60_000, ctrlLossMs: -1 };
      const subsystem = await fabric.connect(options);
      fabric.a.die();
      await settle();
      const read = outcomeOf(subsystem.namespace(1).read(0, 1));
      for (let hour = 0; hour < 24 * 60; hour += 1) {
        fabric.clock.advance(60_000);
        await settle();
      }
      expect([...statesOf(subsystem), read.now]).to.deep.equal(['reconnecting', 'pending']);
      fabric.a.unreachable = false;
      fabric.clock.advance(60_000);
      await settle();
      expect([...statesOf(subsystem), read.now]).to.deep.equal(['live', 'resolved']);
      await subsystem.disconnect();
    });
  });

  it('lets I/O fail after fastIoFailMs without any, and wait no more when one is back', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({
        ...QUIET,
        reconnectDelayMs: 500,
        fastIoFailMs: 3000,
        ctrlLossMs: 60_000,
      });
      const events = new MultipathEvents(subsystem);
      const namespace = subsystem.namespace(1);
      fabric.a.die();
      await settle();
      await fabric.pass(1000);
      fabric.b.die();
      await settle();
      const read = outcomeOf(namespace.read(0, 1));
      await fabric.pass(2950);
      expect(read.now, 'the other path was lost later').to.equal('pending');
      await fabric.pass(50 + SLACK_MS);
      expect(read.now).to.match(/Read/);
      expect((await rejection(namespace.read(0, 1), NvmeStatusError)).message).to.match(/Read/);
      fabric.b.unreachable = false;
      await fabric.pass(500 + SLACK_MS);
      await namespace.read(0, 1);
      expect(events.failing).to.deep.equal([
        [1, true],
        [1, false],
      ]);
      await subsystem.disconnect();
    });
  });

  it('is lost when keep alive has no answer, and its reads go to the other one', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ keepAliveMs: 5000 });
      const namespace = subsystem.namespace(1);
      fabric.a.fallSilent();
      const reads = [outcomeOf(namespace.read(0, 1)), outcomeOf(namespace.read(1, 1))];
      await fabric.pass(7500 + SLACK_MS);
      expect(stateOf(subsystem, PATH_A)).to.equal('reconnecting');
      expect(subsystem.paths[0]?.reason).to.match(/Keep Alive failed/);
      expect(stateOf(subsystem, PATH_B)).to.equal('live');
      expect(reads.map(({ now }) => now)).to.deep.equal(['resolved', 'resolved']);
      await subsystem.disconnect();
    });
  });

  it('is reset by a command that is overdue', async () => {
    await withFabric(async (fabric) => {
      const options = { ...QUIET, ...ONE_PATH, commandTimeoutMs: 3000, reconnectDelayMs: 1000 };
      const subsystem = await fabric.connect(options);
      const [queue] = fabric.door.pathQueues.keys();
      if (queue === undefined) throw new Error('no queue');
      expect(fabric.door.callsOf('openPathQueue')[0]?.args[1]).to.include({ ioTimeoutMs: 3000 });
      fabric.door.emit({ kind: 'pathOverdue', queue, path: 0, incarnation: 1 });
      fabric.door.emit({ kind: 'pathOverdue', queue, path: 0, incarnation: 1 });
      await settle();
      expect(subsystem.paths[0]).to.include({
        state: 'reconnecting',
        reason: 'a command had no answer in 3000 ms',
      });
      await fabric.pass(1000);
      expect(statesOf(subsystem)).to.deep.equal(['live']);
      await subsystem.disconnect();
    });
  });

  it('is not touched by what is told late of its earlier life', async () => {
    await withFabric(async (fabric) => {
      const options = { ...QUIET, ...ONE_PATH, reconnectDelayMs: 1000 };
      const subsystem = await fabric.connect(options);
      const [queue] = fabric.door.pathQueues.keys();
      if (queue === undefined) throw new Error('no queue');
      const incarnations = (): number[] =>
        fabric.door
          .callsOf('setPath')
          .map(({ args }) => (args[2] as { readonly incarnation: number }).incarnation);
      fabric.door.emit({ kind: 'pathOverdue', queue, path: 0, incarnation: 1 });
      await fabric.pass(1000);
      expect(statesOf(subsystem)).to.deep.equal(['live']);
      expect(incarnations().at(-1)).to.equal(2);
      const sets = incarnations().length;
      fabric.door.emit({ kind: 'pathOverdue', queue, path: 0, incarnation: 1 });
      fabric.door.emit({ kind: 'pathRefused', queue, path: 0, incarnation: 1, status: 0 });
      await settle();
      expect(statesOf(subsystem)).to.deep.equal(['live']);
      await fabric.pass(60_000);
      expect(incarnations().length).to.equal(sets);
      fabric.door.emit({ kind: 'pathOverdue', queue, path: 0, incarnation: 2 });
      await settle();
      expect(statesOf(subsystem)).to.deep.equal(['reconnecting']);
      await subsystem.disconnect();
    });
  });

  it('comes back six times under load without an error', async () => {
    await withFabric(async (fabric) => {
      const options = { ...ONE_PATH, keepAliveMs: 1000, reconnectDelayMs: 1000 };
      const subsystem = await fabric.connect(options);
      const namespace = subsystem.namespace(1);
      for (let round = 0; round < 6; round += 1) {
        fabric.a.die();
        const data = Buffer.alloc(512, round + 1);
        const write = namespace.write(round, data);
        await fabric.pass(2000);
        fabric.a.unreachable = false;
        await fabric.pass(1000 + SLACK_MS);
        await write;
        expect(Buffer.compare(await namespace.read(round, 1), data)).to.equal(0);
      }
      await subsystem.disconnect();
    });
  });
});

describe('ANA of a path', () => {
  it('that stays in "change" for twice ANATT resets it', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, reconnectDelayMs: 1000 });
      fabric.a.changeAna('change');
      await fabric.pass(19_950);
      expect(stateOf(subsystem, PATH_A)).to.equal('live');
      await fabric.pass(50 + SLACK_MS);
      expect(stateOf(subsystem, PATH_A)).to.equal('reconnecting');
      expect(subsystem.paths[0]?.reason).to.match(/ANATT \(10 s\)/);
      fabric.a.setAna('optimized');
      await fabric.pass(1000);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      await fabric.pass(30_000);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      await subsystem.disconnect();
    });
  });

  it('is read again after an ANA status that was lost with the link', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH, reconnectDelayMs: 1000 });
      fabric.a.fail('read', ANA_INACCESSIBLE, 0n, 1);
      fabric.a.stopAt('getLogPage 0c');
      const read = outcomeOf(subsystem.namespace(1).read(0, 1));
      await settle();
      expect(fabric.a.heldNames).to.include('getLogPage 0c');
      fabric.a.cut();
      fabric.a.speak();
      await fabric.pass(1000);
      expect([...statesOf(subsystem), read.now]).to.deep.equal(['live', 'resolved']);
      await subsystem.disconnect();
    });
  });

  for (const [what, ana, status] of [
    ['an ANA status from a controller without ANA', false, ANA_INACCESSIBLE],
    ['a path status that is not ANA', true, INTERNAL_PATHING],
  ] as const) {
    it(`${what} is tried again with a doubling delay`, async () => {
      await withFabric(async (fabric) => {
        fabric.a.controller = { ...fabric.a.controller, cmicAna: ana };
        const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
        fabric.a.fail('read', status);
        const before = fabric.a.log.length;
        const read = outcomeOf(subsystem.namespace(1).read(0, 1));
        await settle();
        const tries: number[] = [];
        let seen = 0;
        for (let ms = 0; ms < 5000; ms += 50) {
          const reads = fabric.a.log.slice(before).filter((name) => name === 'read').length;
          if (reads > seen) tries.push(ms);
          seen = reads;
          await fabric.pass(50);
        }
        const gaps = tries.slice(1).map((at, index) => at - (tries[index] ?? 0));
        expect(gaps).to.deep.equal([100, 200, 400, 800, 1600, 1600]);
        expect(fabric.a.log.slice(before)).not.to.include('getLogPage 0c');
        fabric.a.fail('read', status, 0n, 0);
        await fabric.pass(1600 + SLACK_MS);
        expect(read.now).to.equal('resolved');
        // Much later, it is a first time again.
        await fabric.pass(15_000);
        fabric.a.fail('read', status, 0n, 1);
        const later = outcomeOf(subsystem.namespace(1).read(0, 1));
        await fabric.pass(50);
        expect(later.now).to.equal('pending');
        await fabric.pass(100);
        expect(later.now).to.equal('resolved');
        await subsystem.disconnect();
      });
    });
  }

  it('that changes between its reading and the path going live is not lost', async () => {
    await withFabric(async (fabric) => {
      // The last command of the reading is held, and the state changes before it is answered.
      let readings = 0;
      fabric.a.hold = (name) => {
        if (name === 'getLogPage 0c') readings += 1;
        return name === 'asyncEventRequest' || (name === 'getLogPage 0c' && readings === 2);
      };
      const connecting = fabric.connecting(ONE_PATH);
      await settle();
      const answer = fabric.a.logs.get(0x0c)?.slice(0, 16) ?? new Uint8Array();
      fabric.a.changeAna('inaccessible');
      await settle();
      fabric.a.answer('getLogPage 0c', { data: answer });
      const subsystem = await connecting;
      await settle();
      expect(subsystem.paths[0]?.anaGroups[0]?.state).to.equal('inaccessible');
      const read = outcomeOf(subsystem.namespace(1).read(0, 1));
      await fabric.pass(1000);
      expect(read.now).to.equal('pending');
      fabric.a.changeAna('optimized');
      await settle();
      expect(read.now).to.equal('resolved');
      await subsystem.disconnect();
    });
  });

  it('that cannot be read is read again later', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect({ ...QUIET, ...ONE_PATH });
      const events = new MultipathEvents(subsystem);
      fabric.a.fail('getLogPage 0c', 'internalError', 0n, 2);
      fabric.a.changeAna('nonOptimized');
      await settle();
      expect(events.warnings.join()).to.match(/ANA log cannot be read.*internal error/i);
      await fabric.pass(1000 + SLACK_MS);
      expect(events.ana).to.deep.equal([`${PATH_A} 1=non-optimized`]);
      await subsystem.disconnect();
    });
  });

  it('may flap a hundred times a second: the last state stays, and nothing piles up', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect(QUIET);
      await settle();
      const timers = fabric.clock.pending;
      for (let round = 0; round < 1000; round += 1) {
        const state = (['change', 'optimized', 'inaccessible', 'nonOptimized'] as const)[round % 4];
        fabric.a.changeAna(state ?? 'optimized');
        fabric.clock.advance(10);
        await settle();
      }
      await settle();
      expect(subsystem.paths[0]?.anaGroups[0]?.state).to.equal('non-optimized');
      expect(fabric.clock.pending).to.be.at.most(timers);
      expect(fabric.a.heldNames).to.deep.equal(['asyncEventRequest']);
      fabric.a.changeAna('optimized');
      await settle();
      expect(subsystem.paths[0]?.anaGroups[0]?.state).to.equal('optimized');
      await subsystem.disconnect();
    });
  });
});

describe('the first attempt', () => {
  it('may fail on one of two paths, which is tried on', async () => {
    await withFabric(async (fabric) => {
      fabric.a.unreachable = true;
      const subsystem = await fabric.connect({ reconnectDelayMs: 1000 });
      expect(statesOf(subsystem)).to.deep.equal(['reconnecting', 'live']);
      fabric.a.unreachable = false;
      await fabric.pass(1000);
      expect(statesOf(subsystem)).to.deep.equal(['live', 'live']);
      await subsystem.disconnect();
    });
  });

  it('that fails on all paths is one error, and nothing is left', async () => {
    await withFabric(async (fabric) => {
      fabric.a.unreachable = fabric.b.unreachable = true;
      const error = await rejection(fabric.connecting(), ConnectError);
      expect(error.message).to.contain(A);
    });
  });

  it('that fails on the last path ends the I/O that waited for it', async () => {
    await withFabric(async (fabric) => {
      fabric.b.hold = (name) => name === 'identify 01';
      const subsystem = await fabric.connect({ ctrlLossMs: 0 });
      fabric.a.die();
      await settle();
      const read = outcomeOf(subsystem.namespace(1).read(0, 1));
      await settle();
      expect(read.now).to.equal('pending');
      fabric.b.dropQueue(fabric.b.queueOf(0), 'cut');
      await settle();
      expect(statesOf(subsystem)).to.deep.equal(['failed', 'failed']);
      expect(read.now).to.match(/Read/);
      await subsystem.disconnect();
    });
  });
});
