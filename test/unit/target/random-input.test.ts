import { expect } from 'chai';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { Rig, settle } from './support.ts';

/** xorshift32: the same bytes for the same seed. */
function generator(seed: number): () => number {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return state >>> 0;
  };
}

const OPCODES = [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f] as const;

/** Random bytes that often get past the first checks: known opcode, right flags, plausible SGL. */
function randomSqe(next: () => number): Uint8Array {
  const sqe = Uint8Array.from({ length: 64 }, () => next() & 0xff);
  if (next() % 4 > 0) sqe[0] = OPCODES[next() % OPCODES.length] ?? 0;
  if (next() % 8 > 0) sqe[1] = 0x40;
  if (next() % 2 > 0) sqe.fill(0, 5, 24);
  if (next() % 4 > 0) sqe[4] = next() % 10;
  if (next() % 4 > 0) sqe[39] = 0x4f;
  if (next() % 2 > 0) sqe.set([0, 0x10, 0], 32);
  if (next() % 2 > 0) sqe.fill(0, 44, 64);
  // A reset or shutdown in between is legal, but would end most of the test.
  if (sqe[0] === 0x7f && sqe[4] === 0) sqe[44] = 0x08;
  return sqe;
}

describe('random input', () => {
  for (const [kind, nqn] of [
    ['an I/O controller', undefined],
    ['a discovery controller', DISCOVERY_NQN],
  ] as const) {
    it(`to ${kind} is answered exactly once, and nobody else notices`, async () => {
      const rig = await Rig.start();
      const victim = await rig.host();
      const admin = await rig.host({}, nqn === undefined ? {} : { subnqn: nqn });
      const next = generator(20261129);
      const tags: number[] = [];
      for (let round = 0; round < 3000; round++) tags.push(admin.post(randomSqe(next)));
      await settle();
      const statuses = tags.map((tag) => admin.answered(tag)?.status);
      const open = statuses.filter((status) => status === undefined).length;
      expect(open, 'event requests that wait').to.be.at.most(4);
      expect(statuses).to.include('success');
      expect(statuses).to.include('invalidField');
      expect(statuses).not.to.include('internalError');
      expect((await victim.identify({ cns: 1 })).status).to.equal('success');
      await rig.stop();
    }).timeout(30_000);
  }

  it('as Connect never makes a controller, and is answered', async () => {
    const rig = await Rig.start();
    const next = generator(77);
    const queue = await rig.queue(0);
    for (let round = 0; round < 300; round++) {
      const data = Uint8Array.from({ length: 1024 }, () => next() & 0xff);
      const qid = next() % 3;
      const answer = await queue.connect({ qid, sqsize: next() & 0x3f, recfmt: next() & 1 }, data);
      expect(answer.status).to.be.oneOf(['connectInvalid', 'connectIncompatible']);
    }
    expect(rig.target.controllers).to.deep.equal([]);
    expect((await queue.connect()).status).to.equal('success');
    await rig.stop();
  }).timeout(30_000);
});
