/** Options of a subsystem over several paths: their defaults, and what is refused before the network is touched. */
import { expect } from 'chai';
import { PATHS_MAX } from '../../../../native/index.ts';
import { ArgumentError } from '../../../../initiator/errors.ts';
import { resolveMultipath } from '../../../../initiator/multipath/options.ts';
import type { MultipathOptions } from '../../../../initiator/multipath/options.ts';
import { NQN } from '../fake-controller.ts';
import { rejection, settle } from '../support.ts';
import { A, B, withFabric } from './fabric.ts';

const PATHS = [{ address: A }, { address: B }] as const;

function resolve(options: Partial<Record<keyof MultipathOptions, unknown>>): unknown {
  return resolveMultipath({ nqn: NQN, paths: PATHS, ...options } as MultipathOptions);
}

describe('options of several paths', () => {
  it('have defaults', () => {
    const resolved = resolveMultipath({ nqn: NQN, paths: PATHS });
    expect(resolved).to.deep.include({
      policy: 'round-robin',
      reconnectDelayMs: 10_000,
      ctrlLossMs: 600_000,
      fastIoFailMs: Infinity,
      writes: 'fenced',
    });
    expect(resolved.paths.map(({ endpoint }) => endpoint)).to.deep.equal([
      `${A}:4420`,
      `${B}:4420`,
    ]);
  });

  it('take -1 for never', () => {
    const never = resolveMultipath({ nqn: NQN, paths: PATHS, ctrlLossMs: -1, fastIoFailMs: -1 });
    expect(never).to.deep.include({ ctrlLossMs: Infinity, fastIoFailMs: Infinity });
  });

  const tooMany = Array.from({ length: PATHS_MAX + 1 }, (_, index) => ({
    address: `10.0.0.${index}`,
  }));
  const bad: readonly (readonly [
    string,
    Partial<Record<keyof MultipathOptions, unknown>>,
    RegExp,
  ])[] = [
    ['no path', { paths: [] }, /1 to 16 paths, not 0/],
    ['too many paths', { paths: tooMany }, /1 to 16 paths, not 17/],
    [
      'a path twice',
      { paths: [...PATHS, { address: A, port: 4420 }] },
      /192\.0\.2\.11:4420 .*twice/,
    ],
    ['a name for an address', { paths: [{ address: 'host' }] }, /address/],
    ['a port of 0', { paths: [{ address: A, port: 0 }] }, /port .* not 0/],
    ['a bad source', { paths: [{ address: A, sourceAddress: '1.2.3' }] }, /source address/],
    [
      'another policy',
      { policy: 'best' },
      /policy must be round-robin, queue-depth, numa, not best/,
    ],
    [
      'other writes',
      { writes: 'maybe' },
      /writes must be fenced, proven, immediate, never, not maybe/,
    ],
    ['a delay of 0', { reconnectDelayMs: 0 }, /reconnectDelayMs .* from 1 .* not 0/],
    ['a delay of never', { reconnectDelayMs: -1 }, /reconnectDelayMs .* not -1/],
    ['half a delay', { reconnectDelayMs: 1.5 }, /reconnectDelayMs .* not 1\.5/],
    ['a loss below -1', { ctrlLossMs: -2 }, /ctrlLossMs .* not -2/],
    ['a loss that is none', { ctrlLossMs: NaN }, /ctrlLossMs .* not NaN/],
    ['an endless loss', { ctrlLossMs: Infinity }, /ctrlLossMs .* not Infinity/],
    ['a loss of text', { ctrlLossMs: '5' }, /ctrlLossMs .* not 5/],
    ['a fail below -1', { fastIoFailMs: -7 }, /fastIoFailMs .* not -7/],
    ['a fail beyond timers', { fastIoFailMs: 2 ** 31 }, /fastIoFailMs .* not 2147483648/],
    ['a bad depth', { depth: 1 }, /depth .* not 1/],
    ['a bad NQN', { nqn: 'disk' }, /NQN/],
  ];
  for (const [what, options, message] of bad) {
    it(`refuse ${what}`, () => {
      expect(() => resolve(options)).to.throw(ArgumentError, message);
    });
  }

  it('that are bad touch nothing', async () => {
    await withFabric(async (fabric) => {
      const error = await rejection(fabric.connecting({ ctrlLossMs: -2 }), ArgumentError);
      expect(error.message).to.match(/ctrlLossMs/);
      expect(fabric.door.calls).to.deep.equal([]);
    });
  });

  it('of a policy that is set later are checked as well', async () => {
    await withFabric(async (fabric) => {
      const subsystem = await fabric.connect();
      expect(() => {
        subsystem.setPolicy('best' as 'numa');
      }).to.throw(ArgumentError, /policy must be/);
      subsystem.setPolicy('queue-depth');
      expect(subsystem.policy).to.equal('queue-depth');
      expect(fabric.door.callsOf('configurePathQueue').at(-1)?.args[1]).to.include({
        policy: 'queue-depth',
      });
      await subsystem.disconnect();
    });
  });

  it('of a signal end with the connect: paths are reconnected after it was aborted', async () => {
    await withFabric(async (fabric) => {
      const until = new AbortController();
      const subsystem = await fabric.connect({ signal: until.signal, reconnectDelayMs: 1000 });
      until.abort();
      fabric.a.cut();
      await settle();
      await fabric.pass(1000);
      expect(subsystem.paths.map(({ state }) => state)).to.deep.equal(['live', 'live']);
      await subsystem.disconnect();
    });
  });

  it('of a signal end the connect, and nothing is left', async () => {
    await withFabric(async (fabric) => {
      fabric.a.fallSilent();
      fabric.b.fallSilent();
      const until = new AbortController();
      const connecting = rejection(fabric.connecting({ signal: until.signal }), Error);
      await settle();
      until.abort();
      expect((await connecting).message).to.match(/connect to 192\.0\.2\.11:4420 was cancelled/);
    });
  });
});
