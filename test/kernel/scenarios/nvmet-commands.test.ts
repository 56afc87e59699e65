/** What our library sends to the kernel's target besides reads and writes: every I/O command, logs, features, Identify. */
import { randomFillSync } from 'node:crypto';
import { expect } from 'chai';
import { NvmeStatusError, type Controller } from '../../../initiator/index.ts';
import { FeatureId, NumberOfQueues } from '../../../native/wire/features.ts';
import { CommandsSupportedLog, LogId, SmartLog } from '../../../native/wire/logs.ts';
import { NSID_ALL } from '../../../native/wire/sqe.ts';
import { failureOf } from '../../support/in-process.ts';
import { NQN, NvmetPeer } from '../support/nvmet-peer.ts';
import { everyKernel, side, SMALL_V6 } from '../support/scenario.ts';

const ANA_HEADER_BYTES = 16;
const COMPARE = 0x05;
const VERIFY = 0x0c;

async function supportedCommands(controller: Controller): Promise<readonly number[]> {
  const page = await controller.getLogPage({
    lid: LogId.commandsSupported,
    bytes: CommandsSupportedLog.size,
  });
  return CommandsSupportedLog.decode(page).io;
}

side('our initiator on soft → kernel nvmet', (scenario) => {
  scenario(
    'flush, write zeroes, deallocate, compare, verify, out of range',
    { variants: [...everyKernel(), SMALL_V6] },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const controller = await peer.connect();
      const namespace = controller.namespace(1);
      const { lbaSize, lbaCount } = namespace;
      const data = randomFillSync(new Uint8Array(300 * lbaSize));
      const zeros = new Uint8Array(300 * lbaSize);
      await namespace.write(7, data, { fua: true });
      await namespace.flush();
      expect(Buffer.from(await namespace.read(7, 300)).equals(data)).to.equal(true);
      await namespace.writeZeroes(8, 298);
      const around = await namespace.read(7, 300);
      const wanted = Buffer.from(data);
      wanted.fill(0, lbaSize, 299 * lbaSize);
      expect(wanted.equals(around)).to.equal(true);
      await namespace.write(0, data);
      await namespace.deallocate([
        { lba: 0, count: 8 },
        { lba: 16, count: 284 },
      ]);
      expect(
        Buffer.from(await namespace.read(8, 8)).equals(data.subarray(8 * lbaSize, 16 * lbaSize)),
      ).to.equal(true);
      expect(
        Buffer.from(await namespace.read(16, 284)).equals(zeros.subarray(0, 284 * lbaSize)),
      ).to.equal(true);

      // The kernel's target lists neither; a controller may learn them, and then they must work.
      const supported = await supportedCommands(controller);
      for (const [opcode, run] of [
        [COMPARE, () => namespace.compare(8, data.subarray(8 * lbaSize, 16 * lbaSize))],
        [VERIFY, () => namespace.verify(0, 8)],
      ] as const) {
        if ((supported[opcode] ?? 0) !== 0) await run();
        else
          expect(await failureOf(run()))
            .to.be.instanceOf(NvmeStatusError)
            .with.property('status', 'invalidOpcode');
      }
      for (const run of [
        () => namespace.read(lbaCount, 1),
        () => namespace.read(lbaCount - 1n, 2),
        () => namespace.write(lbaCount, new Uint8Array(lbaSize)),
        () => namespace.write(lbaCount - 1n, data),
      ]) {
        // The kernel's block layer finds it, and its target has no better word than Internal Error.
        expect(await failureOf(run())).to.be.instanceOf(NvmeStatusError);
      }
      // None of the refusals cost the connection.
      expect(controller.state).to.equal('live');
      await namespace.read(0, 1);
    },
  );

  scenario('identify, log pages, features', { variants: everyKernel() }, async (lab) => {
    const peer = await NvmetPeer.start(lab);
    const controller = await peer.connect({ queues: 2 });
    expect(await controller.identify()).to.include({ subnqn: NQN, cntlid: controller.cntlid });
    const ids = controller.namespace(1).ids;
    const uuid = (
      await peer.guest.run(
        `cat /sys/kernel/config/nvmet/subsystems/${NQN}/namespaces/1/device_uuid`,
      )
    ).trim();
    expect(ids.uuid).to.equal(uuid);
    await controller.namespace(1).write(0, new Uint8Array(1 << 20));
    const log = (lid: number, bytes: number): Promise<Uint8Array> =>
      controller.getLogPage({ lid, bytes, nsid: NSID_ALL });
    const smart = SmartLog.decode(await log(LogId.smart, SmartLog.size));
    expect(smart.hostWriteCommands > 0n, 'writes counted').to.equal(true);
    expect(await supportedCommands(controller)).to.satisfy(
      (io: number[]) => io[1] !== 0 && io[2] !== 0,
    );
    await log(LogId.errorInformation, 64);
    await log(LogId.firmwareSlot, 512);
    await log(LogId.changedNamespaces, 4096);
    const ana = await log(LogId.ana, ANA_HEADER_BYTES);
    expect(Buffer.from(ana).readUInt16LE(8), 'ANA groups').to.equal(1);
    const unknown = await failureOf(log(0xc5, 512));
    expect(unknown).to.be.instanceOf(NvmeStatusError);

    const queues = await controller.getFeatures({ fid: FeatureId.numberOfQueues });
    expect(Number(queues.result) & 0xffff).to.be.greaterThan(1);
    expect(NumberOfQueues.size).to.equal(4);
    const keepAlive = await controller.getFeatures({ fid: FeatureId.keepAliveTimer });
    expect(Number(keepAlive.result)).to.equal(controller.keepAliveMs);
    await controller.getFeatures({ fid: FeatureId.asyncEventConfiguration });
  });

  scenario(
    'a namespace that comes and goes is noticed',
    { variants: everyKernel() },
    async (lab) => {
      const peer = await NvmetPeer.start(lab);
      const controller = await peer.connect();
      const changed = (): Promise<void> =>
        new Promise((resolve) =>
          controller.once('namespacesChanged', () => {
            resolve();
          }),
        );
      const gone = changed();
      await peer.nvmet.enableNamespace(NQN, 1, false);
      await gone;
      expect(controller.namespaces).to.have.length(0);
      const back = changed();
      await peer.nvmet.enableNamespace(NQN, 1, true);
      await back;
      await controller.namespace(1).write(0, new Uint8Array(4096));
    },
  );
});
