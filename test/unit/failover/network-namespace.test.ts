/** What the kernel's traffic control is told of a fault. */
import { expect } from 'chai';
import { qdiscOf } from '../../../tools/failover/network-namespace.ts';

describe('faults in network namespaces', () => {
  const cases = [
    ['a black hole is a queue without room', { drop: 1 }, 'bfifo limit 1'],
    ['loss', { drop: 0.05 }, 'netem loss 5%'],
    ['duplicates', { duplicate: 0.5 }, 'netem duplicate 50%'],
    [
      'reordering delays those that are passed, and lets the others by',
      { reorder: 0.25, reorderMs: 3 },
      'netem delay 3ms reorder 75%',
    ],
    [
      'delay and jitter, which netem has on both sides of the mean',
      { delayMs: 5, jitterMs: 2 },
      'netem delay 6ms 1ms',
    ],
    ['loss and delay at once', { drop: 0.01, delayMs: 4 }, 'netem delay 4ms 0ms loss 1%'],
  ] as const;
  for (const [title, rule, words] of cases) {
    it(title, () => {
      expect(qdiscOf(rule).join(' ')).to.equal(words);
    });
  }
});
