/** Discovery as blktests asks for it (docs/blktests.md): many subsystems, keep-alive, the generation counter. */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { LiveTarget } from '../support/live-target.ts';
import { NQN, PORT } from '../support/our-target.ts';
import { DEFAULT, side } from '../support/scenario.ts';

const DISCOVERY_NQN = 'nqn.2014-08.org.nvmexpress.discovery';
const SECOND_PORT = 4421;

interface DiscoveryLog {
  readonly genctr: number;
  readonly records: readonly { readonly subnqn: string; readonly trsvcid: string }[];
}

async function discover(host: KernelHost): Promise<DiscoveryLog> {
  return JSON.parse(await host.guest.run(`nvme discover ${host.fabric()} -o json`)) as DiscoveryLog;
}

const numbered = (index: number): string => `nqn.2026-11.io.nvmeof:numbered-${index}`;

side('kernel host → our target on soft', (scenario) => {
  scenario('discovery lists a thousand subsystems', { seconds: 180 }, async (lab) => {
    const nqns = Array.from({ length: 1000 }, (_, index) => numbered(index));
    const namespaces = [{ null: '1MiB' }];
    await LiveTarget.start(lab, { subsystems: nqns.map((nqn) => ({ nqn, namespaces })) });
    const host = await KernelHost.prepare(lab);
    const { records } = await discover(host);
    const listed = records.map(({ subnqn }) => subnqn.trim());
    expect(listed.toSorted()).to.deep.equal([...nqns, DISCOVERY_NQN].sort());
    expect(await host.connectDevice({ nqn: numbered(999) })).to.match(/^\/dev\/nvme/);
  });

  scenario('discovery controllers are kept alive', {}, async (lab) => {
    const seconds = 2;
    const target = await LiveTarget.start(lab);
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect({ nqn: DISCOVERY_NQN, args: `-k ${seconds}` });
    const [before] = await target.controllers();
    expect(before).to.include({ subsystemNqn: DISCOVERY_NQN, keepAliveMs: seconds * 1000 });
    // Without Keep Alive commands the target would have ended it by then.
    await host.guest.run(`sleep ${4 * seconds}`);
    expect(await host.state(controller)).to.equal('live');
    const [after] = await target.controllers();
    expect(after?.cntlid).to.equal(before?.cntlid);
    expect(await host.guest.run('dmesg')).not.to.match(/keep.alive.*(fail|error|timeout)/i);
    await host.disconnect(DISCOVERY_NQN);
    expect(await target.controllers()).to.deep.equal([]);
  });

  scenario(
    'the discovery generation counter counts what changes the log',
    { core: [DEFAULT] },
    async (lab) => {
      const target = await LiveTarget.start(lab);
      const host = await KernelHost.prepare(lab);
      const [nqn, unused] = [numbered(1), numbered(2)];
      const everybody = { allowAnyHost: true, hosts: [] };
      let last = await discover(host);
      const expectChange = async (what: string, records: number): Promise<void> => {
        const now = await discover(host);
        expect(now.genctr, what).to.be.greaterThan(last.genctr);
        expect(now.records, what).to.have.length(records);
        last = now;
      };
      // The subsystem and discovery itself.
      expect(last.records).to.have.length(2);
      await target.call('addSubsystem', { nqn, namespaces: [{ null: '1MiB' }] });
      await expectChange('a subsystem added', 3);
      await target.call('setHosts', nqn, { allowAnyHost: false, hosts: [] });
      await expectChange('hosts shut out', 2);
      await target.call('setHosts', nqn, everybody);
      await expectChange('hosts let in', 3);
      await target.call('addPort', { address: target.address, port: SECOND_PORT });
      await expectChange('a port added', 6);
      expect(last.records.filter(({ trsvcid }) => trsvcid.trim() === String(PORT))).to.have.length(
        3,
      );
      await target.call('removePort', target.address, SECOND_PORT);
      await expectChange('a port removed', 3);
      await target.call('removeSubsystem', nqn);
      await expectChange('a subsystem removed', 2);
      // One that was never enabled, removed again.
      await target.call('addSubsystem', {
        nqn: unused,
        namespaces: [{ null: '1MiB', enabled: false }],
      });
      await target.call('removeSubsystem', unused);
      await expectChange('a subsystem added and removed', 2);
      // Namespaces are no part of the log.
      await target.call('addNamespace', NQN, { null: '1MiB' });
      expect(await discover(host)).to.deep.equal(last);
    },
  );

  scenario('fifty discoveries leave nothing behind', {}, async (lab) => {
    const target = await LiveTarget.start(lab);
    const host = await KernelHost.prepare(lab);
    await host.guest.run(
      `for round in $(seq 50); do nvme discover ${host.fabric()} >/dev/null; done
       ! ls /sys/class/nvme | grep .`,
      100,
    );
    expect(await target.controllers()).to.deep.equal([]);
  });
});
