/** What is held of lost controllers: until when, who is asked and how often, and who hears of it. Over a clock turned by hand. */
import { expect } from 'chai';
import { ManualClock } from '../../../../native/common/clock.ts';
import type { Controller } from '../../../../initiator/controller.ts';
import type { FenceOutcome, WritesPolicy } from '../../../../initiator/multipath/fence.ts';
import { ASK_AGAIN_MS, LostWrites, TELL_MS } from '../../../../initiator/multipath/lost-writes.ts';
import type { Path } from '../../../../initiator/multipath/path.ts';
import { settle } from '../support.ts';

const HOUR_MS = 3_600_000;
const BY_PEER: FenceOutcome = {
  guarantee: 'cross-controller-reset',
  peer: 'controller 2 at 192.0.2.12:4420',
};

class Scene {
  readonly clock = new ManualClock();
  readonly released: FenceOutcome[] = [];
  readonly held: string[] = [];
  readonly warnings: string[] = [];
  /** How often the other controller was asked, and what it answers. */
  asked = 0;
  ends = false;
  keepAliveMs = 5000;
  ciu = 200;
  present = true;
  readonly lostWrites: LostWrites;

  constructor(writes: WritesPolicy) {
    this.lostWrites = new LostWrites({
      clock: this.clock,
      writes,
      peers: () => (this.present ? [this.#peer] : []),
      onOver: (_path, _incarnation, outcome) => this.released.push(outcome),
      onHeld: (_path, cntlid, reason) => this.held.push(`${cntlid}: ${reason}`),
      warn: (message) => this.warnings.push(message),
    });
  }

  readonly #peer = {
    cntlid: 2,
    endpoint: '192.0.2.12:4420',
    data: { ccrl: 4 },
    crossControllerReset: () => {
      this.asked++;
      return this.ends ? Promise.resolve(true) : Promise.reject(new Error('it stands still'));
    },
  } as unknown as Controller;

  async lose(): Promise<void> {
    const { ciu, keepAliveMs } = this;
    const data = { ciu, cirn: 7n, kas: 10, cqt: 3000, ctrattTbkas: false };
    const lost = { cntlid: 1, keepAliveMs, data } as unknown as Controller;
    this.lostWrites.begin({ index: 0, incarnation: 1, endpoint: 'A' } as unknown as Path, lost);
    await settle();
  }

  async pass(ms: number): Promise<void> {
    for (let left = ms; left > 0; left -= 1000) {
      this.clock.advance(Math.min(1000, left));
      await settle();
    }
  }
}

describe('writes of a lost controller', () => {
  it('proven: no time lets them go; who could not help is asked again until it can', async () => {
    const scene = new Scene('proven');
    await scene.lose();
    expect(scene.asked).to.equal(1);
    await scene.pass(60_000);
    expect(scene.released).to.deep.equal([]);
    expect(scene.asked).to.equal(1 + 60_000 / ASK_AGAIN_MS);
    scene.ends = true;
    await scene.pass(ASK_AGAIN_MS);
    expect(scene.released).to.deep.equal([BY_PEER]);
    expect(scene.clock.pending).to.equal(0);
  });

  it('proven: a peer that comes is asked at once', async () => {
    const scene = new Scene('proven');
    scene.present = false;
    await scene.lose();
    await scene.pass(20_000);
    expect(scene.asked).to.equal(0);
    scene.present = scene.ends = true;
    scene.lostWrites.peerCame();
    await settle();
    expect(scene.released).to.deep.equal([BY_PEER]);
    expect(scene.clock.pending).to.equal(0);
  });

  it('somebody is told once, and why, when it takes longer', async () => {
    const scene = new Scene('proven');
    await scene.lose();
    scene.clock.advance(TELL_MS - 1);
    expect(scene.held).to.deep.equal([]);
    scene.clock.advance(1);
    expect(scene.held).to.deep.equal(['1: no other controller could end it']);
    await scene.pass(60_000);
    expect(scene.held).to.have.length(1);
    expect(scene.warnings[0]).to.equal(
      'path A was lost, and controller 2 at 192.0.2.12:4420 could not end its controller: it stands still',
    );
    scene.lostWrites.close();
    await settle();
    expect(scene.clock.pending).to.equal(0);
  });

  it('proven: a controller without a name of its life is told of as such', async () => {
    const scene = new Scene('proven');
    scene.ciu = 0;
    await scene.lose();
    await scene.pass(TELL_MS);
    expect(scene.held).to.deep.equal(['1: it tells nothing by which another one could end it']);
    expect(scene.asked).to.equal(0);
    scene.lostWrites.close();
    await settle();
  });

  it('nobody is told when it is over soon', async () => {
    const scene = new Scene('proven');
    scene.ends = true;
    await scene.lose();
    expect(scene.released).to.deep.equal([BY_PEER]);
    await scene.pass(HOUR_MS / 100);
    expect(scene.held).to.deep.equal([]);
    expect(scene.clock.pending).to.equal(0);
  });

  it('fenced: the time lets them go', async () => {
    const scene = new Scene('fenced');
    await scene.lose();
    await scene.pass(12_000);
    expect(scene.released).to.deep.equal([]);
    expect(scene.held).to.have.length(1);
    await scene.pass(1000);
    const [outcome] = scene.released;
    expect(outcome).to.deep.equal({ guarantee: 'quiesce-time', waitedMs: 13_000, promised: true });
    expect(scene.clock.pending).to.equal(0);
  });

  it('fenced, without keep alive: who could not help is asked again', async () => {
    const scene = new Scene('fenced');
    scene.keepAliveMs = 0;
    await scene.lose();
    await scene.pass(ASK_AGAIN_MS);
    expect(scene.asked).to.equal(2);
    scene.ends = true;
    await scene.pass(ASK_AGAIN_MS);
    expect(scene.released).to.deep.equal([BY_PEER]);
  });

  it('never: they end at once', async () => {
    const scene = new Scene('never');
    await scene.lose();
    expect(scene.released).to.have.length(1);
    expect(scene.released[0]?.guarantee).to.equal('none');
    expect(scene.clock.pending).to.equal(0);
  });
});
