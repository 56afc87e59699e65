/**
 * Our target on verbs side by side with nvmet: one guest, one kernel host, the same backing (block devices in memory), turn and
 * turn about. Emulation says nothing about absolute speed; the ratios of one run do. Idle processors of the guest spin: they would
 * measure the machine below otherwise, which takes 0.14 to 0.4 ms to wake one, and ours has a thread to wake where nvmet has none.
 *   npm run test:kernel -- --grep 'ours beside nvmet'
 */
import { expect } from 'chai';
import { KernelHost } from '../support/kernel-host.ts';
import { startGuestTarget } from '../support/in-guest.ts';
import { addNullBlock, removeNullBlock } from '../support/null-block.ts';
import { Nvmet } from '../support/nvmet.ts';
import { NQN } from '../support/our-target.ts';
import { DEFAULT, side } from '../support/scenario.ts';

const NVMET_NQN = `${NQN}-nvmet`;
const NVMET_PORT = 4421;
const ROUNDS = 3;
/** What the geometric mean of all ratios has to reach. */
const WANTED = 0.8;
const JOBS = [
  { rw: 'randread', bs: '4k', depth: 1 },
  { rw: 'randread', bs: '4k', depth: 32 },
  { rw: 'randwrite', bs: '4k', depth: 1 },
  { rw: 'randwrite', bs: '4k', depth: 32 },
  { rw: 'read', bs: '128k', depth: 8 },
  { rw: 'write', bs: '128k', depth: 8 },
] as const;

/** KiB/s of both directions, out of fio's terse form. */
function bandwidth(terse: string): number {
  const fields = terse.trim().split('\n').at(-1)?.split(';') ?? [];
  return Number(fields[6]) + Number(fields[47]);
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? NaN;
}

side('kernel host → our target on verbs', (scenario) => {
  const options = { variants: [DEFAULT], seconds: 900, guest: { spinWhenIdle: true } };
  scenario('ours beside nvmet', options, async (lab) => {
    const { guest, address } = await lab.takeGuest();
    for (const name of ['nullb0', 'nullb1']) {
      await addNullBlock(guest, name);
      lab.defer(() => (guest.alive ? removeNullBlock(guest, name) : undefined));
    }
    const nvmet = await Nvmet.prepare(guest);
    lab.defer(() => (guest.alive ? nvmet.clear() : undefined));
    await nvmet.addSubsystem(NVMET_NQN);
    await nvmet.addNamespace(NVMET_NQN, 1, '/dev/nullb0');
    await nvmet.addPort(1, address, NVMET_PORT, [NVMET_NQN]);
    const target = await startGuestTarget(lab, guest, address, {
      exported: '/dev/nullb1,cache=direct',
    });
    const host = await KernelHost.prepare(lab);
    const devices = {
      ours: await host.connectDevice({ address }),
      nvmet: await host.connectDevice({ address, port: NVMET_PORT, nqn: NVMET_NQN }),
    };
    const ratios: number[] = [];
    for (const { rw, bs, depth } of JOBS) {
      const seen = { ours: [] as number[], nvmet: [] as number[] };
      for (let round = 0; round < ROUNDS; round += 1) {
        for (const name of ['nvmet', 'ours'] as const) {
          const terse = await host.fio(
            devices[name],
            `--rw=${rw} --bs=${bs} --iodepth=${depth} --time_based --runtime=2 --output-format=terse --terse-version=3`,
          );
          seen[name].push(bandwidth(terse));
        }
      }
      const [ours, theirs] = [median(seen.ours), median(seen.nvmet)];
      ratios.push(ours / theirs);
      console.log(
        `      ${rw} ${bs} depth ${depth}: ours ${ours} KiB/s, nvmet ${theirs} KiB/s, ratio ${(ours / theirs).toFixed(2)}`,
      );
    }
    const mean = Math.exp(ratios.reduce((sum, ratio) => sum + Math.log(ratio), 0) / ratios.length);
    console.log(`      geometric mean ${mean.toFixed(2)}`);
    await host.disconnect(NQN);
    await host.disconnect(NVMET_NQN);
    await target.stop();
    expect(mean).to.be.at.least(WANTED);
  });
});
