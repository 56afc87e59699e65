/** Our CLI on the kernel's target: discovery, what it says of itself, data written and read, the load generator. */
import { createHash, randomFillSync } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'chai';
import { NQN, NvmetPeer, PORT } from '../support/nvmet-peer.ts';
import { DEFAULT, everyKernel, everyVariant, side } from '../support/scenario.ts';

const MIB = 1 << 20;
const LENGTH = 4 * MIB;

side('our initiator on soft → kernel nvmet', (scenario) => {
  scenario(
    'discover, write, read, by the CLI',
    { core: [DEFAULT], variants: everyVariant() },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const log = JSON.parse(await peer.cliOutput('discover', '--json')) as { paths: object[] };
      const { address } = peer;
      const known = log.paths.find((path) => (path as { nqn: string }).nqn === NQN);
      expect(known).to.include({
        transport: 'rdma',
        address,
        service: String(PORT),
        kind: 'subsystem',
      });

      const written = join(lab.folder, 'written');
      const read = join(lab.folder, 'read');
      const data = randomFillSync(Buffer.alloc(LENGTH));
      writeFileSync(written, data);
      await peer.cliOutput('write', '--offset', '1MiB', '-i', written);
      await peer.cliOutput('read', '--offset', '1MiB', '--length', `${LENGTH}`, '-o', read);
      expect(readFileSync(read).equals(data)).to.equal(true);
      const seen = await peer.guest.run(
        `dd if=${peer.device} bs=1M skip=1 count=4 iflag=direct | sha256sum`,
      );
      expect(seen).to.include(createHash('sha256').update(data).digest('hex'));
    },
  );

  scenario(
    'info, id-ctrl, id-ns, bench --verify, by the CLI',
    { variants: everyKernel() },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const json = async (command: string, ...args: string[]): Promise<Record<string, unknown>> =>
        JSON.parse(await peer.cliOutput(command, '--json', ...args)) as Record<string, unknown>;
      const info = await json('info', '--queues', '2');
      expect(info).to.include({ nqn: NQN, model: 'Linux', pathMtu: lab.variant.mtu });
      expect(info['queues']).to.have.length(2);
      expect(info['namespaces']).to.have.nested.property('[0].blockSize', 512);
      expect(info['namespaces']).to.have.nested.property('[0].bytes', 64 * MIB);
      const controller = await json('id-ctrl');
      expect(controller).to.include({ subnqn: NQN, mn: 'Linux' });
      expect(await json('id-ns')).to.include({ nsze: (64 * MIB) / 512 });
      const bench = await peer.cliOutput(
        'bench',
        ...[
          '--rw',
          'randrw',
          '--bs',
          '4k',
          '--qd',
          '64',
          '--queues',
          '2',
          '--runtime',
          '3',
          '--verify',
        ],
      );
      expect(bench).to.match(/random read, QD 64/);
    },
  );
});
