/**
 * A bad network between our initiator and the kernel's target: packets lost, late, twice or damaged, and the kernel without a
 * receive for what we send. Everything completes with the right data, and counters show that the fault did happen.
 */
import { randomFillSync } from 'node:crypto';
import { expect } from 'chai';
import type { Controller, Counters } from '../../../initiator/index.ts';
import { damageOneIn, dropOneIn, impair, READ_RESPONSE, repair } from '../support/impairment.ts';
import { NvmetPeer } from '../support/nvmet-peer.ts';
import {
  DEFAULT,
  everyKernel,
  everyVariant,
  side,
  SMALL_V6,
  type Lab,
  type Variant,
} from '../support/scenario.ts';

const LANES = 4;
/** The slowest path is the kernel's own recovery: a timeout for each lost READ response. */
const COMMAND_TIMEOUT_MS = 60_000;

/** Writes and reads back `rounds` times in each lane, odd lengths included; every difference is an error. */
async function exercise(controller: Controller, rounds: number, blocksMax = 128): Promise<void> {
  const namespace = controller.namespace(1);
  const lane = async (index: number): Promise<void> => {
    for (let round = 0; round < rounds; round++) {
      const blocks = 1 + ((index * 37 + round * 61) % blocksMax);
      const data = randomFillSync(Buffer.alloc(blocks * namespace.lbaSize));
      const lba = index * 1024 + round;
      await namespace.write(lba, data);
      const back = await namespace.read(lba, blocks);
      if (!data.equals(back))
        throw new Error(`lane ${index}, round ${round}: ${blocks} blocks differ`);
    }
  };
  await Promise.all(Array.from({ length: LANES }, (_, index) => lane(index)));
  expect(controller.state).to.equal('live');
}

/** How much each counter grew while `work` ran. */
async function counting(
  controller: Controller,
  work: () => Promise<void>,
): Promise<(name: string) => number> {
  const before: Counters = controller.counters();
  await work();
  const after: Counters = controller.counters();
  return (name) => (after[name] ?? 0) - (before[name] ?? 0);
}

async function connected(lab: Lab): Promise<{ peer: NvmetPeer; controller: Controller }> {
  const peer = await NvmetPeer.start(lab);
  const controller = await peer.connect({
    queues: 2,
    commandTimeoutMs: COMMAND_TIMEOUT_MS,
    keepAliveMs: 0,
  });
  return { peer, controller };
}

/** Which of them a lost packet moves depends on whose it was. */
const LOSS = [
  'soft.requester.retransmits',
  'soft.responder.read_replays',
  'soft.responder.duplicates',
];

const IPV4_EVERY_KERNEL: readonly Variant[] = [...everyKernel(), { ...DEFAULT, mtu: 1024 }];

side('our initiator on soft → kernel nvmet', (scenario) => {
  for (const [name, fault, rounds, grows] of [
    ['0.1 % loss', 'loss 0.1%', 60, []],
    ['1 % loss', 'loss 1%', 40, LOSS],
    ['reordering', 'delay 3ms reorder 95%', 30, []],
    ['duplication', 'duplicate 5%', 40, ['soft.responder.duplicates']],
  ] as const) {
    scenario(
      name === 'reordering' ? name : `${name} in both directions`,
      {
        variants: name === '1 % loss' ? everyVariant() : [...everyKernel(), SMALL_V6],
        seconds: 240,
      },
      async (lab) => {
        const { peer, controller } = await connected(lab);
        // READ responses out of order end rxe's queue pair: only what it sends comes out of order.
        const receive = name === 'reordering' ? {} : { receive: fault };
        await impair(lab, peer.guest, { ...receive, send: fault });
        const grew = await counting(controller, () => exercise(controller, rounds));
        const seen = grows.reduce((sum, counter) => sum + grew(counter), 0);
        if (grows.length > 0) expect(seen, grows.join(' + ')).to.be.greaterThan(0);
        await repair(peer.guest);
        await controller.disconnect();
      },
    );
  }

  scenario(
    'connects and disconnects with 1 % loss',
    { variants: everyKernel(), seconds: 180 },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      await impair(lab, peer.guest, { receive: 'loss 1%', send: 'loss 1%' });
      for (let round = 0; round < 20; round++) {
        const controller = await peer.connect({ queues: 2 });
        await controller.namespace(1).write(0, new Uint8Array(4096));
        await controller.disconnect();
      }
    },
  );

  // The kernel asks again for the rest, after its timer; our answer begins with a FIRST, as the specification says.
  for (const [position, nth] of [
    ['first', 3],
    ['middle', 40],
    ['last', 3],
    ['only', 5],
  ] as const) {
    scenario(
      `${position} packets of READ responses lost`,
      // 1 KiB goes in the capsule: no READ.
      { variants: position === 'only' ? everyKernel() : IPV4_EVERY_KERNEL, seconds: 180 },
      async (lab) => {
        const { peer, controller } = await connected(lab);
        await dropOneIn(lab, peer.guest, nth, READ_RESPONSE[position]);
        const namespace = controller.namespace(1);
        // 16 at once: a busy queue leaves even short data to READs.
        const blocks = position === 'only' ? lab.variant.mtu / namespace.lbaSize : 128;
        const grew = await counting(controller, async () => {
          for (let round = 0; round < 4; round++) {
            const data = randomFillSync(Buffer.alloc(blocks * namespace.lbaSize));
            const places = Array.from({ length: 16 }, (_, index) => index * blocks);
            await Promise.all(places.map((lba) => namespace.write(lba, data)));
            for (const lba of places) {
              const back = await namespace.read(lba, blocks);
              expect(data.equals(back), `round ${round}, LBA ${lba}`).to.equal(true);
            }
          }
        });
        expect(grew('soft.responder.read_replays')).to.be.greaterThan(0);
        expect(grew('soft.qp_errors')).to.equal(0);
      },
    );
  }

  scenario(
    'damaged packets: a wrong ICRC is dropped by either side',
    { variants: everyKernel(), seconds: 180 },
    async (lab) => {
      const { peer, controller } = await connected(lab);
      await damageOneIn(lab, peer.guest, 50);
      const towards = await counting(controller, () => exercise(controller, 30));
      expect(towards('soft.requester.retransmits')).to.be.greaterThan(0);
      await repair(peer.guest);
      // The kernel sends no UDP checksum: damaged packets reach us, and our check of the ICRC.
      await impair(lab, peer.guest, { send: 'corrupt 1%' });
      const from = await counting(controller, () => exercise(controller, 30));
      expect(from('soft.rx.bad_icrc')).to.be.greaterThan(0);
      await repair(peer.guest);
    },
  );

  // Shared receive queues of 256, one per completion vector, for eight queues that send 1016 commands at once: RNR NAKs with the timer of code 0.
  scenario(
    'the kernel runs out of receives (RNR, 655 ms)',
    { variants: everyKernel(), seconds: 180 },
    async (lab) => {
      const peer = await NvmetPeer.start(lab, { moduleParameters: 'use_srq=1 srq_size=256' });
      const controller = await peer.connect({
        queues: 8,
        depth: 128,
        commandTimeoutMs: COMMAND_TIMEOUT_MS,
        keepAliveMs: 0,
      });
      const namespace = controller.namespace(1);
      const grew = await counting(controller, async () => {
        for (let burst = 0; burst < 5; burst++) {
          await Promise.all(
            Array.from({ length: 1016 }, (_, i) =>
              namespace.write(i * 8, new Uint8Array(4096).fill(i + burst)),
            ),
          );
        }
      });
      expect(grew('soft.requester.receiver_not_ready')).to.be.greaterThan(0);
      expect(grew('soft.qp_errors')).to.equal(0);
      for (let i = 0; i < 1016; i++) {
        const back = await namespace.read(i * 8, 8);
        expect(
          back.every((byte) => byte === ((i + 4) & 255)),
          `write ${i}`,
        ).to.equal(true);
      }
    },
  );
});
