/** More clients of a control socket than it serves, all at once, that say nothing and stay: the process keeps its descriptors. */
import { expect } from 'chai';
import { once } from 'node:events';
import { readdirSync } from 'node:fs';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { CLIENTS_MAX } from '../../target/control/server.ts';
import { call } from '../../tools/cli/control/client.ts';
import { eventually } from '../support/counters.ts';
import { Process, loopbackAddress, temporaryFolder } from '../support/processes.ts';

const CROWD = 500;
const SOON_MS = 15_000;
/** Those that are served, as many that take a moment to read that they are not (target/control/refusals.ts), and a few that come and go. */
const DESCRIPTORS_MAX = 2 * CLIENTS_MAX + 8;

describe(`${CROWD} clients of a control socket at once`, function () {
  this.timeout(60_000);

  it('take a bounded number of descriptors, and leave the target to the next one', async () => {
    const folder = temporaryFolder();
    const socket = join(folder.path, 'control.sock');
    const listen = ['--listen', loopbackAddress(), '--export', 'memory:1MiB'];
    const target = new Process(['target', ...listen, '--control', socket]);
    const crowd: Socket[] = [];
    try {
      await target.waitFor(/nvme connect -t rdma/);
      const open = (): number => readdirSync(`/proc/${String(target.child.pid)}/fd`).length;
      const before = open();
      let most = 0;
      const look = setInterval(() => (most = Math.max(most, open())), 1);
      try {
        await Promise.all(
          Array.from({ length: CROWD }, async () => {
            const one = connect({ path: socket, allowHalfOpen: true });
            crowd.push(one);
            one.on('error', () => undefined);
            await once(one, 'connect');
          }),
        );
        const refused = (): number => crowd.filter(({ bytesRead }) => bytesRead > 0).length;
        for (const one of crowd) one.resume();
        await eventually(
          () => refused() >= CROWD - CLIENTS_MAX,
          SOON_MS,
          () => `${refused()} were told to come later`,
        );
        expect(refused()).to.equal(CROWD - CLIENTS_MAX);
        await eventually(
          () => open() <= before + CLIENTS_MAX,
          SOON_MS,
          () => `${open()} descriptors, ${before} before`,
        );
      } finally {
        clearInterval(look);
      }
      expect(most - before).to.be.within(CLIENTS_MAX, DESCRIPTORS_MAX);
      for (const one of crowd) one.destroy();
      await eventually(
        () => open() <= before,
        SOON_MS,
        () => `${open()} descriptors, ${before} before`,
      );
      expect(await call(socket, 'target.status', {})).to.include({ pid: target.child.pid });
    } finally {
      for (const one of crowd) one.destroy();
      await target.stop();
      folder.remove();
    }
  });
});
