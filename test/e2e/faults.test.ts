/**
 * Injected faults between our initiator and our target: data stays right under loss, duplicates, reordering and delay,
 * a black hole ends the association with its reason, and what is not opened for faults takes none.
 */
import { expect } from 'chai';
import { once } from 'node:events';
import { applyFaults, DisconnectedError } from '../../initiator/index.ts';
import type { Controller, FaultRule } from '../../initiator/index.ts';
import { failureOf, randomBytes, within, withTarget } from '../support/in-process.ts';

const memory = { memory: 16 << 20, blockSize: 4096 } as const;
const BYTES = 256 * 1024;
const AREAS = 8;

/** Writes and reads areas side by side, several times over. */
async function moveAndCompare(controller: Controller, rounds: number): Promise<void> {
  const namespace = controller.namespace(1);
  const blocks = BYTES / 4096;
  for (let round = 0; round < rounds; round++) {
    await Promise.all(
      Array.from({ length: AREAS }, async (_, area) => {
        const data = randomBytes(BYTES);
        await namespace.write(area * blocks, data);
        const back = await namespace.read(area * blocks, blocks);
        expect(Buffer.compare(back, data), `area ${area}, round ${round}`).to.equal(0);
      }),
    );
  }
}

describe('injected faults', function () {
  this.timeout(60_000);

  const CASES: Readonly<Record<string, readonly [FaultRule, string]>> = {
    '1 % loss': [{ drop: 0.01 }, 'soft.fault.out_dropped'],
    duplicates: [{ duplicate: 0.1 }, 'soft.fault.in_duplicated'],
    reordering: [{ reorder: 0.02, reorderMs: 0.5 }, 'soft.fault.out_reordered'],
    '5 ms of delay': [{ delayMs: 5, jitterMs: 1 }, 'soft.fault.in_delayed'],
    'all of them': [
      { drop: 0.005, duplicate: 0.02, reorder: 0.01, delayMs: 1 },
      'soft.fault.in_dropped',
    ],
  };
  for (const [name, [rule, counter]] of Object.entries(CASES)) {
    it(`no wrong data: ${name}`, async () => {
      await withTarget({ namespaces: [memory], faultInjection: true }, async (scope) => {
        const controller = await scope.connect({ faultInjection: true });
        applyFaults(controller, { rules: [rule] });
        applyFaults(scope.target, { rules: [rule], seed: 2 });
        await moveAndCompare(controller, 3);
        expect(controller.counters()[counter]).to.be.greaterThan(0);
        expect(controller.counters()['soft.rx.bad_icrc']).to.equal(0);
        applyFaults(controller, { rules: [] });
        applyFaults(scope.target, { rules: [] });
        await moveAndCompare(controller, 1);
      });
    });
  }

  it('a black hole ends the association, and says why', async () => {
    await withTarget({ namespaces: [memory], faultInjection: true }, async (scope) => {
      const controller = await scope.connect();
      await moveAndCompare(controller, 1);
      const lost = once(controller, 'disconnected') as Promise<[DisconnectedError]>;
      const begin = performance.now();
      scope.target.injectFaults({ rules: [{ drop: 1, peer: controller.sourceAddress }] });
      const read = await within(5000, 'a read', failureOf(controller.namespace(1).read(0, 1)));
      expect(read).to.be.instanceOf(DisconnectedError);
      const [error] = await within(5000, 'the end', lost);
      // 27 transport timeouts of 67 ms.
      expect(performance.now() - begin)
        .to.be.greaterThan(1000)
        .and.lessThan(4000);
      expect(error.message).to.match(/did not answer|retries|retry/i);
      scope.target.injectFaults({ rules: [] });
      await moveAndCompare(await scope.connect(), 1);
    });
  });

  it('rules change while I/O runs', async () => {
    await withTarget({ namespaces: [memory], faultInjection: true }, async (scope) => {
      const controller = await scope.connect({ faultInjection: true });
      const state = { running: true };
      const io = moveAndCompare(controller, 4).finally(() => (state.running = false));
      const rules: readonly FaultRule[][] = [
        [{ delayMs: 2 }],
        [{ drop: 0.01 }],
        [],
        [{ reorder: 0.05 }],
      ];
      let changes = 0;
      for (let turn = 0; state.running; turn++) {
        const where = turn % 2 === 0 ? scope.target : controller;
        applyFaults(where, { rules: rules[turn % rules.length] ?? [] });
        changes++;
        await new Promise((resolve) => setTimeout(resolve, 5));
      }
      await io;
      expect(changes).to.be.greaterThan(3);
    });
  });

  it('are refused where nobody asked for them at the start', async () => {
    await withTarget({ namespaces: [memory] }, async (scope) => {
      const controller = await scope.connect();
      for (const where of [scope.target, controller]) {
        expect(() => {
          applyFaults(where, { rules: [{ drop: 1 }] });
        })
          .to.throw(Error, /not opened for faults/)
          .with.property('code', 'EPERM');
      }
      expect(controller.counters()).not.to.have.property('soft.fault.in_dropped');
      await moveAndCompare(controller, 1);
    });
  });
});
