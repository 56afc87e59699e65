/** Single commands as blktests sends them (docs/blktests.md): identifiers, ranges, passthrough, and errors that are told. */
import { randomBytes } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect } from 'chai';

import { BACKINGS, makeBacking, titleOn } from '../support/backings.ts';
import { KernelHost } from '../support/kernel-host.ts';
import { LiveTarget } from '../support/live-target.ts';
import { NQN, sparseFile } from '../support/our-target.ts';
import { side } from '../support/scenario.ts';

const UUID = '5a3c1c0e-7d39-4c0c-9d0a-0f5b6f1f4e01';
const NGUID = '5a3c1c0e7d394c0c00a0980f5b6f1f4e';
const BLOCK = 512;
const MIB = 1 << 20;

interface ErrorLogPage {
  readonly errors: readonly {
    readonly error_count: number;
    readonly sqid: number;
    readonly status_field: number;
    readonly lba: number;
    readonly nsid: number;
  }[];
}

async function errorCount(host: KernelHost, controller: string): Promise<number> {
  const text = await host.guest.run(`nvme smart-log /dev/${controller} -o json`);
  // As text, for it has 128 bits.
  return Number((JSON.parse(text) as { num_err_log_entries: string }).num_err_log_entries);
}

side('kernel host → our target on soft', (scenario) => {
  scenario('UUID and NGUID of a namespace are those it was given', {}, async (lab) => {
    await LiveTarget.start(lab, {
      namespaces: [{ memory: '1MiB', uuid: UUID, nguid: NGUID }, { memory: '1MiB' }],
    });
    const host = await KernelHost.prepare(lab);
    const given = (await host.connectDevice()).replace('/dev/', '/sys/block/');
    expect((await host.guest.run(`cat ${given}/uuid ${given}/nguid ${given}/wwid`)).split('\n'))
      .to.include.members([UUID, `uuid.${UUID}`])
      .and.to.satisfy((lines: string[]) => lines.some((l) => l.replaceAll('-', '') === NGUID));
    // Derived when left out, and different.
    const derived = await host.device(NQN, 2);
    const text = await host.guest.run(`nvme ns-descs ${derived}`);
    expect(text)
      .to.match(/^uuid +: [0-9a-f]{8}-/m)
      .and.to.match(/^nguid +: [0-9a-f]{32}$/m);
    expect(text).not.to.include(UUID).and.not.to.include(NGUID);
  });

  scenario(
    'access beyond the end is refused, up to the last block it is not',
    { seconds: 240 },
    async (lab) => {
      const blocks = MIB / BLOCK;
      await LiveTarget.start(lab, { namespaces: [{ path: sparseFile(lab, 'disk.img', MIB) }] });
      const host = await KernelHost.prepare(lab);
      const controller = await host.connect();
      const device = await host.device();
      await host.guest.run(`dd if=/dev/urandom of=/tmp/data bs=${BLOCK} count=2 2>&1`);
      const commands = (start: string, count: number): string[] => {
        const range = `${device} -s ${start} -c ${count - 1}`;
        const data = `-z ${count * BLOCK} -d`;
        return [
          `write ${range} ${data} /tmp/data`,
          `read ${range} ${data} /tmp/back`,
          `compare ${range} ${data} /tmp/data`,
          `verify ${range}`,
          `write-zeroes ${range}`,
          `dsm ${device} -n 1 -d -s ${start} -b ${count}`,
        ];
      };
      for (const command of commands(String(blocks - 2), 2))
        await host.guest.run(`nvme ${command}`);
      const beyond = [
        [String(blocks), 1],
        [String(blocks - 1), 2],
        ['0xfffffffffffffffe', 2],
        ['0xffffffffffffffff', 1],
      ] as const;
      const refused = beyond.flatMap(([start, count]) => commands(start, count));
      const said = await host.guest.run(
        refused.map((command) => `nvme ${command} 2>&1 || true`).join('\n'),
        180,
      );
      const answers = said.trim().split('\n');
      expect(answers).to.have.length(refused.length);
      refused.forEach((command, index) => {
        expect(answers[index], command).to.match(/LBA_RANGE|LBA Out of Range/i);
      });
      expect(await host.state(controller)).to.equal('live');
      await host.fio(device, '--rw=randwrite --bs=4k --size=256k --iodepth=4 --verify=crc32c');
    },
  );

  for (const kind of BACKINGS) {
    scenario(
      `a discard of many ranges takes these blocks and no others${titleOn(kind)}`,
      {},
      async (lab) => {
        const { path, file } = makeBacking(lab, kind, 'disk.img', 4 * MIB);
        await LiveTarget.start(lab, { namespaces: [{ path }] });
        const host = await KernelHost.prepare(lab);
        const device = await host.connectDevice();
        const data = randomBytes(4 * MIB);
        const share = (): void => {
          writeFileSync(join(host.guest.share, 'data'), data);
        };
        share();
        await host.guest.run(`dd if=/run/share/data of=${device} bs=1M oflag=direct 2>&1`);
        // Ten ranges as blktests has them, then the 256 that a command can hold, of odd lengths.
        for (const ranges of [
          Array.from({ length: 10 }, (_, i) => [100 * (i + 1), 10] as const),
          Array.from({ length: 256 }, (_, i) => [2000 + 23 * i, 1 + (i % 17)] as const),
        ]) {
          for (const [start, length] of ranges) {
            data.fill(0, start * BLOCK, (start + length) * BLOCK);
          }
          share();
          const starts = ranges.map(([start]) => start).join(',');
          const lengths = ranges.map(([, length]) => length).join(',');
          await host.guest.run(
            `nvme dsm ${device} -n 1 --ad -s ${starts} -b ${lengths}
         dd if=${device} bs=1M iflag=direct status=none | cmp - /run/share/data`,
          );
        }
        await host.guest.run(`nvme flush ${device} -n 1`);
        expect(readFileSync(file).equals(data), 'the backing file differs').to.be.true;
      },
    );
  }

  scenario('passthrough reads and writes of odd lengths', { seconds: 240 }, async (lab) => {
    await LiveTarget.start(lab, { namespaces: [{ memory: '16MiB' }] });
    const host = await KernelHost.prepare(lab);
    const device = await host.connectDevice();
    const generic = device.replace('/dev/nvme', '/dev/ng');
    await host.guest.run('dd if=/dev/urandom of=/tmp/data bs=1M count=1 2>&1');
    for (const [start, count] of [
      ...[1, 7, 8, 9, 511, 512, 513].map((blocks) => [1, blocks] as const),
      ...[1023, 1024, 1025].map((blocks) => [511, blocks] as const),
    ]) {
      const bytes = count * BLOCK;
      const transfer = `${device} -s ${start} -c ${count - 1} -z ${bytes} -d`;
      const raw = `${generic} -n 1 -4 ${start} -6 ${count - 1} -l ${bytes}`;
      await host.guest.run(
        `rm -f /tmp/back # nvme writes into what is there
         head -c ${bytes} /tmp/data >/tmp/piece
         nvme write ${transfer} /tmp/piece
         nvme read ${transfer} /tmp/back
         cmp /tmp/piece /tmp/back
         tr '\\000-\\377' '\\001-\\377\\000' </tmp/piece >/tmp/other
         nvme io-passthru --opcode=1 ${raw} -w -i /tmp/other
         nvme io-passthru --opcode=2 ${raw} -r -b >/tmp/back
         cmp /tmp/other /tmp/back`,
      );
    }
    await host.guest.run(
      `cd /tmp && fio --name=uring --filename=${generic} --ioengine=io_uring_cmd --cmd_type=nvme \
         --rw=randwrite --bs=4k --size=1m --iodepth=16 --verify=crc32c`,
    );
  });

  scenario('errors are told: kernel log, error log page, SMART', {}, async (lab) => {
    await LiveTarget.start(lab, { namespaces: [{ memory: '1MiB' }] });
    const host = await KernelHost.prepare(lab);
    const controller = await host.connect();
    const device = await host.device();
    const before = await errorCount(host, controller);
    await host.guest.run(
      `for enable in /sys/class/nvme/${controller}/passthru_err_log_enabled \
         /sys${device.replace('/dev/', '/block/')}/passthru_err_log_enabled; do echo on >$enable; done
       dmesg -C`,
    );
    for (const command of [
      `read ${device} -s 4000 -c 0 -z ${BLOCK} -d /tmp/back`,
      `io-passthru ${device} -n 1 --opcode=0x7e -l 512 -r`,
      `admin-passthru /dev/${controller} --opcode=0x96 -l 4096 -4 1 -r`,
    ]) {
      expect((await host.guest.attempt(`nvme ${command}`)).code, command).not.to.equal(0);
    }
    const log = await host.guest.run('dmesg');
    expect(log).to.match(/0x2.*sct 0x0 \/ sc 0x80.*DNR/);
    expect(log).to.match(/0x7e.*sct 0x0 \/ sc 0x1\b.*DNR/);
    expect(log).to.match(/0x96.*sct 0x0 \/ sc 0x1\b.*DNR/);
    const page = JSON.parse(
      await host.guest.run(`nvme error-log /dev/${controller} -e 3 -o json`),
    ) as ErrorLogPage;
    const [admin, unknown, read] = page.errors;
    expect(admin).to.include({ error_count: before + 3, sqid: 0 });
    expect(unknown).to.include({ error_count: before + 2, nsid: 1 });
    expect(read).to.include({ error_count: before + 1, nsid: 1, lba: 4000 });
    expect(unknown?.sqid).to.be.greaterThan(0);
    expect(page.errors.map(({ status_field }) => status_field & 0x7ff)).to.deep.equal([1, 1, 0x80]);
    expect(await errorCount(host, controller)).to.equal(before + 3);
  });
});
