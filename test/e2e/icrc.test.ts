/**
 * The full ICRC check, end to end over loopback: nothing is refused that is right, no identification is derived, and who
 * lacks the right to see IP headers is told so. Raw sockets need root; elsewhere the tests are skipped.
 */
import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { connect } from '../../initiator/index.ts';
import { keepLiveCounters } from '../support/counters.ts';
import { NQN, randomBytes, withTarget } from '../support/in-process.ts';
import { CLI, loopbackAddress } from '../support/processes.ts';

const MIB = 1 << 20;

describe('icrc: full', function () {
  this.timeout(20_000);
  const lease = keepLiveCounters();
  before(function () {
    if (process.getuid?.() !== 0) this.skip();
  });

  it('data goes both ways, every packet checked with its own header', async () => {
    await withTarget({ icrc: 'full', namespaces: [{ memory: 16 * MIB }] }, async (scope) => {
      const namespace = (await scope.connect({ icrc: 'full' })).namespace(1);
      const data = randomBytes(8 * MIB);
      await namespace.write(0, data);
      expect(Buffer.from(data).equals(await namespace.read(0, (8 * MIB) / 512))).to.be.true;
      const counters = lease().runtime.door.counters();
      expect(counters['soft.rx.packets']).to.be.greaterThan(1000);
      expect(counters).to.include({
        'soft.rx.bad_icrc': 0,
        'soft.rx.icrc_recovered': 0,
        'socket.received_without_header': 0,
      });
    });
  });

  it('a second user of the address may not ask for another check', async () => {
    await withTarget({ namespaces: [{ memory: MIB }] }, async ({ address }) => {
      let message = '';
      await connect({ address, sourceAddress: address, nqn: NQN, icrc: 'full' }).catch(
        (error: unknown) => {
          message = String(error);
        },
      );
      expect(message).to.include('with ICRC check recovered, not full');
    });
  });

  it('without CAP_NET_RAW the target does not start and says what is missing', () => {
    const { status, stderr } = spawnSync(
      'setpriv',
      [
        '--bounding-set=-net_raw',
        process.execPath,
        CLI,
        'target',
        '--export',
        'memory:1MiB',
        '--listen',
        loopbackAddress(),
        '--icrc',
        'full',
      ],
      { encoding: 'utf8' },
    );
    expect(status).to.be.greaterThan(0);
    expect(stderr).to.match(/CAP_NET_RAW.*setcap.*recovered/);
  });
});
