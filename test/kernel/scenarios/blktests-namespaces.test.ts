/** Namespaces that come, go and change under a connected kernel host, as blktests does it (docs/blktests.md). */
import { randomUUID } from 'node:crypto';
import { expect } from 'chai';
import { BACKINGS, makeBacking } from '../support/backings.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { LiveTarget } from '../support/live-target.ts';
import { LIGHT, Load } from '../support/load.ts';
import { NQN } from '../support/our-target.ts';
import { side } from '../support/scenario.ts';

const MIB = 1 << 20;
const memory = { memory: '8MiB' } as const;
/** Bit 8 of the asynchronous event configuration: attached namespaces changed. */
const NAMESPACE_NOTICES = 0x100;

/** The block device of the namespace with this UUID, once it is there: nvme0n1. */
async function deviceWith(host: KernelHost, uuid: string): Promise<string> {
  const path = await host.guest.until(`grep -lx ${uuid} /sys/block/nvme*n*/uuid 2>/dev/null`);
  return path.split('/')[3] ?? '';
}

/** Also of the disk that each path has under native multipath. */
const countDisks = `ls /sys/block | grep -c '^nvme[0-9]*n'`;

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'two loops enable and disable one namespace under I/O',
    { seconds: 240 },
    async (lab) => {
      const rounds = 200;
      const target = await LiveTarget.start(lab, { namespaces: [memory, memory] });
      const host = await KernelHost.prepare(lab);
      await host.connect();
      const load = await Load.start(host, target, await host.device(NQN, 2), LIGHT);
      const loop = async (): Promise<void> => {
        for (let round = 0; round < rounds; round++) {
          await target.call('disableNamespace', NQN, 1);
          await target.call('enableNamespace', NQN, 1);
        }
      };
      await Promise.all([loop(), loop()]);
      await load.progress();
      await load.stop();
      const device = await host.device();
      await host.fio(device, '--rw=randwrite --bs=4k --size=1m --iodepth=8 --verify=crc32c');
    },
  );

  for (const kind of BACKINGS) {
    scenario(`${kind} namespaces created and deleted under I/O`, { seconds: 240 }, async (lab) => {
      const target = await LiveTarget.start(lab, { namespaces: [memory] });
      const host = await KernelHost.prepare(lab);
      const load = await Load.start(host, target, await host.connectDevice(), LIGHT);
      for (let nsid = 2; nsid <= 11; nsid++) {
        const uuid = randomUUID();
        const { path } = makeBacking(lab, kind, `disk${nsid}.img`, MIB);
        await target.call('addNamespace', NQN, { nsid, path, uuid });
        const name = await deviceWith(host, uuid);
        await target.call('removeNamespace', NQN, nsid);
        await host.guest.until(`[ ! -e /sys/block/${name} ]`);
      }
      await load.progress();
      await load.stop();
    });
  }

  scenario('many namespaces appear and go', { seconds: 240 }, async (lab) => {
    const count = 64;
    const target = await LiveTarget.start(lab, { namespaces: [{ null: '1MiB' }] });
    const host = await KernelHost.prepare(lab);
    await host.connectDevice();
    for (let nsid = 2; nsid <= count; nsid++) {
      await target.call('addNamespace', NQN, { nsid, null: '1MiB' });
    }
    await host.guest.until(`[ $(${countDisks}) -eq ${count} ]`, 90);
    for (let nsid = count; nsid > 1; nsid--) await target.call('removeNamespace', NQN, nsid);
    await host.guest.until(`[ $(${countDisks}) -eq 1 ]`, 90);
  });

  scenario('a controller is rescanned under verified I/O', { seconds: 240 }, async (lab) => {
    const target = await LiveTarget.start(lab, { namespaces: [memory, memory] });
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect();
    const load = await Load.start(
      host,
      target,
      await host.device(),
      '--rw=randrw --bs=4k --iodepth=8 --size=2m --verify=crc32c --verify_fatal=1',
    );
    for (let round = 0; round < 20; round++) {
      await host.guest.run(`echo 1 >/sys/class/nvme/${controller}/rescan_controller`);
      await load.progress(10);
    }
    await load.stop();
    expect(Number(await host.guest.run(countDisks))).to.equal(2);
  });

  scenario('a write to a namespace that was just disabled', {}, async (lab) => {
    const target = await LiveTarget.start(lab, { namespaces: [memory, memory] });
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect();
    const [device, other] = [await host.device(NQN, 1), await host.device(NQN, 2)];
    // The host shall not hear of it.
    const text = await host.guest.run(`nvme get-feature /dev/${controller} -f 0xb`);
    const configured = Number(/value:\s*(0x[0-9a-f]+)/i.exec(text)?.[1]);
    expect(configured & NAMESPACE_NOTICES).to.equal(NAMESPACE_NOTICES);
    await host.guest.run(
      `nvme set-feature /dev/${controller} -f 0xb --value=${configured & ~NAMESPACE_NOTICES}
       dd if=/dev/urandom of=/tmp/data bs=512 count=1 2>&1`,
    );
    const write = (to: string): string => `nvme write ${to} -s 1 -c 0 -z 512 -d /tmp/data`;
    await host.guest.run(write(device));
    await target.call('disableNamespace', NQN, 1);
    const refused = await host.guest.attempt(write(device));
    expect(refused.code).not.to.equal(0);
    expect(refused.stdout + refused.stderr).to.match(/INVALID_NS|Invalid Namespace/i);
    // The block layer's own write ends with an error as well, in bounded time.
    const written = await host.guest.attempt(
      `dd if=/tmp/data of=${device} seek=1 bs=512 count=1 oflag=direct`,
      30,
    );
    expect(written.code).to.equal(1);
    await host.guest.run(write(other));
    await target.call('enableNamespace', NQN, 1);
    await host.guest.run(`nvme ns-rescan /dev/${controller}`);
    await host.guest.run(write(await host.device(NQN, 1)));
  });

  scenario('namespaces are remapped faster than the host looks', { seconds: 240 }, async (lab) => {
    const nsids = [1, 2, 3];
    const target = await LiveTarget.start(lab, { namespaces: [memory, memory, memory] });
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect();
    let uuids: string[] = [];
    for (let round = 0; round < 10; round++) {
      const order = round % 2 === 0 ? nsids : nsids.toReversed();
      for (const nsid of order) await target.call('removeNamespace', NQN, nsid);
      uuids = nsids.map(() => randomUUID());
      for (const nsid of order.toReversed()) {
        const uuid = uuids[nsid - 1] ?? '';
        await target.call('addNamespace', NQN, { ...memory, nsid, uuid });
      }
    }
    // A kernel that finds another UUID under an NSID takes the old device away, and looks again when it is told to.
    for (const uuid of uuids) {
      await host.guest.until(
        `grep -qx ${uuid} /sys/block/nvme*n*/uuid || { nvme ns-rescan /dev/${controller}; exit 1; }`,
      );
    }
    expect(Number(await host.guest.run(countDisks))).to.equal(3);
    expect(await host.state(controller)).to.equal('live');
    for (const nsid of nsids) {
      const device = await host.device(NQN, nsid);
      await host.fio(device, '--rw=randwrite --bs=4k --size=256k --iodepth=4 --verify=crc32c');
    }
  });
});
