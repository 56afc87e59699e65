/**
 * The verbs provider against kernels: our target and our initiator on libibverbs in a guest (rdma_rxe and siw), with the
 * kernel's host and target in the same guest (rxe and siw carry what a device sends to itself), and with our own soft
 * provider outside.
 */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { nvmeofIn, startGuestTarget } from '../support/in-guest.ts';
import { NQN as NVMET_NQN, NvmetPeer } from '../support/nvmet-peer.ts';
import { NQN, startOurTarget } from '../support/our-target.ts';
import { DEFAULT, everyVariant, side, SMALL_V6 } from '../support/scenario.ts';

const SIW = { ...DEFAULT, driver: 'siw' } as const;
const VARIANTS = [...everyVariant(), SIW];
const VERIFY = '--rw=randwrite --bsrange=512-128k --size=8m --iodepth=16 --verify=crc32c';
const BENCH = '--rw randrw --bs 8k --qd 8 --size 8MiB --number 400 --verify';

side('kernel host → our target on verbs', (scenario) => {
  scenario(
    'discover, connect, fio verify, disconnect',
    { variants: VARIANTS, seconds: 400 },
    async (lab) => {
      const { guest, address } = await lab.takeGuest();
      const target = await startGuestTarget(lab, guest, address);
      const host = await KernelHost.prepare(lab);
      const log = await host.guest.run(`nvme discover ${host.fabric({ address })}`);
      expect(log).to.include(NQN);
      expect(log).to.include(lab.variant.driver === 'siw' ? 'iwarp' : 'roce-v2');
      const device = await host.connectDevice({ address, args: '-i 2' });
      await host.fio(device, VERIFY);
      await host.disconnect();
      await target.stop();
    },
  );

  scenario(
    'huge pages set aside hold the buffers, and are given back',
    { variants: [DEFAULT], seconds: 400 },
    async (lab) => {
      const { guest, address } = await lab.takeGuest();
      const count = async (name: string): Promise<number> =>
        Number(await guest.run(`awk '/^${name}:/ {print $2}' /proc/meminfo`));
      lab.defer(() => (guest.alive ? guest.run('sysctl -qw vm.nr_hugepages=0') : undefined));
      await guest.run('sysctl -qw vm.nr_hugepages=128');
      const before = await count('HugePages_Free');
      expect(before).to.be.greaterThan(64);
      const target = await startGuestTarget(lab, guest, address);
      const host = await KernelHost.prepare(lab);
      const device = await host.connectDevice({ address });
      expect(await count('HugePages_Free')).to.be.lessThan(before);
      await host.fio(device, VERIFY);
      await host.disconnect();
      await target.stop();
      expect(await count('HugePages_Free')).to.equal(before);
    },
  );
});

side('our initiator on verbs → kernel target', (scenario) => {
  scenario(
    'discover, info, bench with verification',
    { variants: VARIANTS, seconds: 400 },
    async (lab) => {
      const { guest, address } = await NvmetPeer.start(lab);
      const endpoint = address.includes(':') ? `'[${address}]'` : address;
      expect(await nvmeofIn(guest, `discover ${endpoint}`)).to.include(NVMET_NQN);
      expect(await nvmeofIn(guest, `info ${endpoint} ${NVMET_NQN}`)).to.include('64');
      await nvmeofIn(guest, `bench ${endpoint} ${NVMET_NQN} ${BENCH}`);
    },
  );
});

side('our initiator on soft → our target on verbs', (scenario) => {
  scenario(
    'bench with verification',
    { variants: [DEFAULT, SMALL_V6], seconds: 400 },
    async (lab) => {
      const { guest, address } = await lab.takeGuest();
      const target = await startGuestTarget(lab, guest, address);
      const endpoint = address.includes(':') ? `[${address}]` : address;
      const bench = lab.nvmeof('bench', ['bench', endpoint, NQN, ...BENCH.split(' ')]);
      const { code, stdout, stderr } = await bench.ended();
      expect(code, `${stdout}${stderr}`).to.equal(0);
      await target.stop();
    },
  );
});

side('our initiator on verbs → our target on soft', (scenario) => {
  scenario(
    'bench with verification',
    { variants: [DEFAULT, SMALL_V6], seconds: 400 },
    async (lab) => {
      const target = await startOurTarget(lab);
      const { guest } = await lab.takeGuest();
      const endpoint = target.address.includes(':') ? `'[${target.address}]'` : target.address;
      await nvmeofIn(guest, `bench ${endpoint} ${NQN} ${BENCH}`);
    },
  );
});
