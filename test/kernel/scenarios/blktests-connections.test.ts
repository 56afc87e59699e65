/** Controllers that come, go, reset and reconnect under I/O, as blktests does it (docs/blktests.md). */
import { isDeepStrictEqual } from 'node:util';
import { expect } from 'chai';
import type { Guest } from '../support/guest.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { LiveTarget } from '../support/live-target.ts';
import { Load } from '../support/load.ts';
import { NQN, sparseFile } from '../support/our-target.ts';
import { side, type Lab } from '../support/scenario.ts';

const MIB = 1 << 20;
/** Quick to notice and quick to try again. */
const EAGER = '-k 5 -c 1 -l 60';
const BACK_MS = 30_000;
const FREE_MS = 5000;
const LOOK_MS = 50;

/** Admin queue and I/O queues, as the kernel counts them. */
async function queueCount(guest: Guest, controller: string): Promise<number> {
  return Number(await guest.run(`cat /sys/class/nvme/${controller}/queue_count`));
}

/** What the target holds for hosts; all zero when they are gone. */
async function held(target: LiveTarget): Promise<Record<string, number>> {
  const counters = Object.entries(await target.call('counters'));
  return Object.fromEntries(
    counters.filter(([name, value]) => name.startsWith('live.') && value !== 0),
  );
}

/** Polls until the target holds what it held before: it frees a moment after the host's last answer. */
async function expectHeld(target: LiveTarget, before: Record<string, number>): Promise<void> {
  const deadline = performance.now() + FREE_MS;
  for (;;) {
    const now = await held(target);
    if (isDeepStrictEqual(now, before)) break;
    if (performance.now() > deadline) {
      throw new Error(`held: ${JSON.stringify(now)}, before: ${JSON.stringify(before)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
  expect(await target.controllers()).to.deep.equal([]);
}

/** Polls until the host is there, with another controller than `before`; returns its CNTLID. */
async function comesBack(target: LiveTarget, before?: number): Promise<number> {
  const deadline = performance.now() + BACK_MS;
  for (;;) {
    const [controller] = await target.controllers();
    if (controller && controller.cntlid !== before) return controller.cntlid;
    if (performance.now() > deadline) throw new Error(`the host is not back in ${BACK_MS} ms`);
    await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
  }
}

async function startOnFile(lab: Lab): Promise<LiveTarget> {
  return LiveTarget.start(lab, { namespaces: [{ path: sparseFile(lab, 'disk.img', 64 * MIB) }] });
}

side('kernel host → our target on soft', (scenario) => {
  scenario('controllers deleted as soon as they are set up', { seconds: 240 }, async (lab) => {
    const target = await startOnFile(lab);
    const host = await KernelHost.prepare(lab);
    const before = await held(target);
    await host.guest.run(
      `for round in 1 2 3 4 5 6 7 8 9 10; do
         ${host.connectCommand()} >/dev/null
         for controller in /sys/class/nvme/nvme*; do echo 1 >$controller/delete_controller; done
         until ! ls /sys/class/nvme | grep -q .; do sleep 0.05; done
       done`,
      200,
    );
    await expectHeld(target, before);
  });

  scenario('reset, then disconnected, during I/O', { seconds: 180 }, async (lab) => {
    const target = await startOnFile(lab);
    const host = await KernelHost.prepare(lab);
    const before = await held(target);
    const controller = await host.connect();
    const load = await Load.start(host, target, await host.device());
    for (let round = 0; round < 3; round++) {
      await host.guest.run(`nvme reset /dev/${controller}`);
      await host.waitForState(controller, 'live');
      await load.progress();
    }
    await host.disconnect();
    // Its device is gone: an error ends it, and nothing hangs.
    expect((await load.ended).stdout).not.to.match(/err= 0\b/);
    await expectHeld(target, before);
    expect(await host.guest.run('dmesg')).not.to.match(/blocked for more than|WARNING:|BUG:/);
  });

  scenario('queues of their own for writes, and for polling', { seconds: 180 }, async (lab) => {
    const target = await startOnFile(lab);
    const host = await KernelHost.prepare(lab);
    for (const [args, queues, engine] of [
      ['-i 2 -W 1', 3, '--ioengine=libaio --iodepth=8'],
      ['-i 2 -W 1 -P 1', 4, '--ioengine=pvsync2 --hipri'],
      ['-i 1 -P 2', 3, '--ioengine=io_uring --hipri --iodepth=8'],
    ] as const) {
      const controller = await host.connect({ args });
      expect(await queueCount(host.guest, controller), args).to.equal(queues + 1);
      const [view] = await target.controllers();
      expect(view?.queues, args).to.have.length(queues);
      await host.fio(
        await host.device(),
        `--rw=randrw --bsrange=4k-64k --size=2m ${engine} --verify=crc32c --verify_fatal=1`,
      );
      await host.disconnect();
    }
  });

  scenario('the number of queues changes at a reconnect', { seconds: 180 }, async (lab) => {
    const target = await startOnFile(lab);
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect({ args: `${EAGER} -i 2` });
    expect(await queueCount(host.guest, controller)).to.equal(3);
    const load = await Load.start(host, target, await host.device());
    for (const maxQueues of [1, 2, 1, 2]) {
      await target.removePort();
      await host.waitForState(controller, 'connecting');
      await target.addPort({ maxQueues });
      await host.waitForState(controller, 'live');
      expect(await queueCount(host.guest, controller)).to.equal(maxQueues + 1);
      await load.progress();
    }
    await load.stop();
    await host.disconnect();
  });

  scenario(
    'the target ends every controller, in whatever state it is',
    { seconds: 240 },
    async (lab) => {
      const target = await startOnFile(lab);
      const host = await KernelHost.prepare(lab);
      const before = await held(target);
      const end = async (): Promise<void> => {
        await target.removePort();
        await target.addPort();
      };
      const connectAndEnd = async (): Promise<string> => {
        const controller = await host.connect({ args: EAGER });
        const first = await comesBack(target);
        await end();
        await comesBack(target, first);
        return controller;
      };
      for (let round = 0; round < 4; round++) {
        await host.waitForState(await connectAndEnd(), 'live');
        await host.disconnect();
      }
      // Again while it comes back: then the kernel waits out the command it had sent, 60 s, before it disconnects.
      await connectAndEnd();
      await end();
      await host.disconnect(NQN, 100);
      await expectHeld(target, before);
    },
  );

  scenario('taken down and set up again during I/O', { seconds: 240 }, async (lab) => {
    const target = await startOnFile(lab);
    const namespaces = [{ path: `${lab.folder}/disk.img` }];
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect({ args: EAGER });
    const load = await Load.start(host, target, await host.device());
    for (let round = 0; round < 6; round++) {
      await target.removePort();
      await target.call('removeSubsystem', NQN);
      await host.waitForState(controller, 'connecting');
      await target.call('addSubsystem', { nqn: NQN, namespaces });
      await target.addPort();
      await host.waitForState(controller, 'live');
      await load.progress();
    }
    await load.stop();
    await host.disconnect();
  });
});
