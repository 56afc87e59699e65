/**
 * The kernel's target goes away, comes back, or refuses: our initiator reports it within its bounds, does not hang, says
 * why, and connects anew.
 */
import { execFileSync } from 'node:child_process';
import { expect } from 'chai';
import { ConnectError, DisconnectedError, type Controller } from '../../../initiator/index.ts';
import { messageOf } from '../../../native/common/errors.ts';
import { failureOf, within } from '../../support/in-process.ts';
import { Load } from '../../support/load.ts';
import { setEthernetMtu } from '../support/network.ts';
import { NQN, NvmetPeer, PORT } from '../support/nvmet-peer.ts';
import {
  DEFAULT,
  everyKernel,
  everyVariant,
  side,
  SMALL_V6,
  type Lab,
} from '../support/scenario.ts';

const ROOT = '/sys/kernel/config/nvmet';
/** Retries are used up after 1.8 s; a probe starts within a second of silence. Twice that, on a busy machine. */
const DEAD_PEER_MS = 6000;
const FAREWELL_MS = 10_000;

function lost(controller: Controller): Promise<DisconnectedError> {
  return new Promise((resolve) => controller.once('disconnected', resolve));
}

async function refusal(promise: Promise<unknown>): Promise<ConnectError> {
  const failure = await failureOf(promise);
  if (failure instanceof ConnectError) return failure;
  throw failure;
}

async function loaded(lab: Lab): Promise<{ peer: NvmetPeer; controller: Controller; load: Load }> {
  const peer = await NvmetPeer.start(lab);
  const controller = await peer.connect({ queues: 2 });
  const load = new Load(controller.namespace(1));
  await load.progress(50);
  return { peer, controller, load };
}

/** Every lane ends, each with the loss of the connection, and what is left goes away. */
async function expectLoss(
  controller: Controller,
  load: Load,
  gone: Promise<DisconnectedError>,
  ms: number,
): Promise<DisconnectedError> {
  const error = await within(ms, 'the loss is reported', gone);
  await within(1000, 'every command has ended', load.ended());
  for (const failure of load.failures) expect(failure).to.be.instanceOf(DisconnectedError);
  expect(load.failures).to.have.length(16);
  await within(FAREWELL_MS, 'everything is closed', controller.disconnect());
  return error;
}

side('our initiator on soft → kernel nvmet', (scenario) => {
  scenario(
    'subsystem taken off the port and brought back, under load',
    { variants: everyKernel(), seconds: 180 },
    async (lab) => {
      const first = await loaded(lab);
      const { peer } = first;
      let { controller, load } = first;
      for (let round = 0; round < 3; round++) {
        const gone = lost(controller);
        await peer.withdraw();
        await expectLoss(controller, load, gone, DEAD_PEER_MS);
        expect(await refusal(peer.connect())).to.have.property('code', 'CONNECT_NO_LISTENER');
        await peer.offer();
        controller = await peer.connect({ queues: 2 });
        load = new Load(controller.namespace(1));
        await load.progress(50);
      }
      await load.stop();
    },
  );

  scenario('guest powered off with I/O in flight', { variants: everyKernel() }, async (lab) => {
    const { peer, controller, load } = await loaded(lab);
    const gone = lost(controller);
    await peer.guest.kill();
    const error = await expectLoss(controller, load, gone, DEAD_PEER_MS);
    expect(error.message).to.match(/retries exceeded|unreachable/);
  });

  scenario('guest powered off while nothing is in flight', { variants: [DEFAULT] }, async (lab) => {
    const peer = await NvmetPeer.start(lab);
    const controller = await peer.connect({ keepAliveMs: 0 });
    const gone = lost(controller);
    await peer.guest.kill();
    await within(DEAD_PEER_MS, 'the probe finds it', gone);
    await within(FAREWELL_MS, 'everything is closed', controller.disconnect());
  });

  scenario(
    'refusals: unknown NQN, host not allowed, no listener, nobody there',
    { variants: everyVariant({ mtu: 4096 }) },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const unknown = await refusal(peer.connect({ nqn: 'nqn.2026-11.io.nvmeof:nobody' }));
      expect(unknown).to.have.property('code', 'CONNECT_UNKNOWN_NQN');
      expect(unknown.message).to.include('nqn.2026-11.io.nvmeof:nobody');
      expect(await refusal(peer.connect({ port: PORT + 1 }))).to.have.property(
        'code',
        'CONNECT_NO_LISTENER',
      );

      const host = 'nqn.2014-08.org.nvmexpress:uuid:5c0c4a0e-6a65-4d33-8f0a-3a2cb5e9d001';
      await peer.guest.run(`echo 0 >${ROOT}/subsystems/${NQN}/attr_allow_any_host`);
      const stranger = await refusal(peer.connect({ hostNqn: host }));
      expect(stranger).to.have.property('code', 'CONNECT_HOST_NOT_ALLOWED');
      expect(stranger.message).to.include(host);
      await peer.guest.run(`mkdir ${ROOT}/hosts/${host}
      ln -s ${ROOT}/hosts/${host} ${ROOT}/subsystems/${NQN}/allowed_hosts/${host}`);
      const controller = await peer.connect({ hostNqn: host });
      await controller.namespace(1).write(0, new Uint8Array(4096));
      await controller.disconnect();

      const nowhere = lab.variant.family === 'IPv4' ? '10.10.0.250' : 'fd10::fa';
      const silence = await refusal(peer.connect({ address: nowhere, connectTimeoutMs: 2000 }));
      expect(silence).to.have.property('code', 'CONNECT_NO_ANSWER');
      // What the CLI makes of it.
      const { code, stderr } = await peer.runCli([
        'info',
        `${lab.variant.family === 'IPv4' ? peer.address : `[${peer.address}]`}:${PORT + 1}`,
        NQN,
      ]);
      expect(code).to.equal(3);
      expect(stderr).to.include('no NVMe target listens on this port');
    },
  );

  scenario(
    'a path MTU that the link does not carry is refused',
    { variants: [{ ...DEFAULT, mtu: 1024 }, SMALL_V6] },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const failure = await failureOf(peer.connect({ pathMtu: 4096 }));
      expect(messageOf(failure)).to.include('A path MTU of 4096 needs an MTU of 4192');
      await peer.connect({ pathMtu: 1024 });
    },
  );

  scenario(
    'a link on the way that drops large packets ends the connection, nothing hangs',
    { variants: [DEFAULT] },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const controller = await peer.connect({ keepAliveMs: 0 });
      const tap = lab.seats[0]?.port.tap ?? '';
      lab.defer(() => {
        setEthernetMtu(9000);
        return undefined;
      });
      // Both ends believe in 9000; what lies between drops silently.
      execFileSync('ip', ['link', 'set', tap, 'mtu', '1500']);
      const failure = await failureOf(controller.namespace(1).write(0, new Uint8Array(4096)));
      expect(failure).to.be.instanceOf(DisconnectedError);
      expect(messageOf(failure)).to.include('a link on the way is too narrow for the path MTU');
    },
  );
});
