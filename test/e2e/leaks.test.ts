/**
 * Nothing leaks: live counters of the native side, descriptors and memory are after thousands of connections what they
 * were after a hundred. NVMEOF_LEAK_ROUNDS sets how many (2000).
 */
import { expectNoLeaks } from '../support/leaks.ts';
import { loopbackAddress } from '../support/processes.ts';

const ROUNDS = Number(process.env['NVMEOF_LEAK_ROUNDS'] ?? '2000');

describe('connecting and disconnecting', function () {
  this.timeout(60_000 + ROUNDS * 60);

  it(`${ROUNDS} rounds leave counters, descriptors and memory as they were`, () =>
    expectNoLeaks(loopbackAddress(), ROUNDS));
});
