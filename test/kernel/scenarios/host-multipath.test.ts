/** The kernel's native multipath over two ports of one target, whose ANA states change under it. */
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { expect } from 'chai';
import { Target } from '../../../target/index.ts';
import type { AnaStateName } from '../../../target/index.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { NQN, PORT, sparseFile } from '../support/our-target.ts';
import { DEFAULT, side } from '../support/scenario.ts';
import type { Lab } from '../support/scenario.ts';

const PORTS = [PORT, PORT + 1] as const;
const MIB = 1 << 20;

interface Paths {
  readonly host: KernelHost;
  readonly file: string;
  /** Resolves when the target has it and the kernel says so. */
  readonly set: (state: AnaStateName, port?: number) => Promise<void>;
}

/** The kernel's word for the state of a path, by the port it goes to. */
const anaState = (port: number): string =>
  `for path in /sys/class/nvme-subsystem/nvme-subsys*/nvme*/nvme*c*n*; do
     grep -q trsvcid=${port} $path/../address && cat $path/ana_state && exit 0
   done
   exit 1`;

async function connectBoth(lab: Lab): Promise<Paths> {
  const file = sparseFile(lab, 'disk.img', 64 * MIB);
  const { address } = lab;
  const target = await Target.start({
    ports: PORTS.map((port) => ({ address, port })),
    subsystems: [{ nqn: NQN, namespaces: [{ path: file }] }],
  });
  lab.defer(() => target.close());
  const host = await KernelHost.prepare(lab);
  for (const port of PORTS) await host.connect({ port });
  const endpoint = (port: number): string =>
    address.includes(':') ? `[${address}]:${port}` : `${address}:${port}`;
  return {
    host,
    file,
    set: async (state, port) => {
      const rule = port === undefined ? {} : { port: endpoint(port) };
      await target.setAnaState(NQN, { group: 1, state, ...rule });
      for (const seen of port === undefined ? PORTS : [port]) {
        await host.guest.until(`[ "$(${anaState(seen)})" = ${state} ]`);
      }
    },
  };
}

side('kernel host → our target on soft', (scenario) => {
  scenario(
    'ANA states of two ports change under fio, and native multipath follows',
    { variants: [DEFAULT], seconds: 300 },
    async (lab) => {
      const { host, file, set } = await connectBoth(lab);
      const { guest } = host;
      expect((await guest.run('cat /sys/module/nvme_core/parameters/multipath')).trim()).to.equal(
        'Y',
      );
      const device = await host.device();
      const paths = await guest.run(`nvme list-subsys ${device}`);
      for (const port of PORTS) expect(paths).to.match(new RegExp(`trsvcid=${port}.* live`));
      expect(await guest.run('nvme ana-log /dev/nvme0')).to.match(/grpid\s*:\s*1\s/);

      let running = true;
      const fio = host
        .fio(
          device,
          '--rw=randwrite --bs=4k --iodepth=16 --size=32m --time_based --runtime=25 --verify=crc32c --verify_backlog=64',
          200,
        )
        .finally(() => {
          running = false;
        });
      const [first, second] = PORTS;
      const stillRuns = (): boolean => running;
      let rounds = 0;
      while (stillRuns()) {
        await set('inaccessible', first);
        await set('non-optimized', second);
        await set('optimized', first);
        await set('change', second);
        // Nowhere to go: the kernel keeps its I/O until a path comes back.
        await set('inaccessible', first);
        await set('optimized', second);
        await set('optimized', first);
        rounds++;
      }
      await fio;
      expect(rounds).to.be.greaterThan(0);
      expect(await guest.run('dmesg | grep -i "I/O error" || true')).to.equal('');

      await set('persistent-loss', first);
      const read = await guest.run(`nvme flush ${device} -n 1 && sha256sum ${device}`, 120);
      expect(read).to.include(createHash('sha256').update(readFileSync(file)).digest('hex'));
      await set('optimized');
      await host.disconnect();
    },
  );
});
