/**
 * Nothing leaks: live counters of the native side, descriptors, timers and memory are after thousands of connections what they
 * were after a hundred. NVMEOF_LEAK_ROUNDS sets how many (2000), NVMEOF_PATH_LOSSES how often a path is lost (200).
 */
import { expectNoLeaks, expectNoLeaksOfPaths } from '../support/leaks.ts';
import type { LossWay } from '../support/leaks.ts';
import { loopbackAddress } from '../support/processes.ts';

const ROUNDS = Number(process.env['NVMEOF_LEAK_ROUNDS'] ?? '2000');
const LOSSES = Number(process.env['NVMEOF_PATH_LOSSES'] ?? '200');

describe('connecting and disconnecting', function () {
  this.timeout(60_000 + ROUNDS * 60);

  it(`${ROUNDS} rounds leave counters, descriptors and memory as they were`, () =>
    expectNoLeaks(loopbackAddress(), ROUNDS));
});

describe(`a path that is lost and made again ${LOSSES} times, with I/O`, function () {
  this.timeout(120_000 + LOSSES * 1000);

  const ways: Readonly<Record<LossWay, string>> = {
    closed: 'ended by the target',
    reset: 'given up by the host, whose writes are fenced by a Cross-Controller Reset',
    replaced: 'removed, and a new one put in its place',
  };
  for (const [way, title] of Object.entries(ways)) {
    it(`leaves nothing behind: ${title}`, () => expectNoLeaksOfPaths(way as LossWay, LOSSES));
  }
});
