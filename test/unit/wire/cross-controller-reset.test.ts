/** Bytes of Cross-Controller Reset as libnvme's headers and the Base 2.3 specification have them (docs/stale-writes.md). */
import { expect } from 'chai';
import { AsyncNotice } from '../../../native/wire/aer.ts';
import { AsyncEventConfiguration } from '../../../native/wire/features.ts';
import { IdentifyController } from '../../../native/wire/identify.ts';
import {
  CROSS_CONTROLLER_RESETS_MAX,
  CrossControllerResetEntry,
  CrossControllerResetLog,
  LogId,
} from '../../../native/wire/logs.ts';
import { AdminOpcode, directionOf } from '../../../native/wire/opcodes.ts';
import {
  CrossControllerResetCommand,
  CrossControllerResetResult,
} from '../../../native/wire/sqe.ts';
import { Status } from '../../../native/wire/status.ts';

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

describe('Cross-Controller Reset on the wire', () => {
  it('the command: opcode 38h, ICID and CIU in CDW10, CIRN in CDW12 and 13', () => {
    const sqe = CrossControllerResetCommand.encode({
      opcode: AdminOpcode.crossControllerReset,
      icid: 0x1234,
      ciu: 0xab,
      cirn: 0x0102_0304_0506_0708n,
    });
    expect(sqe[0]).to.equal(0x38);
    expect(directionOf(0x38)).to.equal('none');
    expect(hex(sqe.subarray(40, 56))).to.equal('3412ab00000000000807060504030201');
  });

  it('the answer: three bits of dword 0', () => {
    expect(hex(CrossControllerResetResult.encode({ immediate: true }))).to.match(/^01000000/);
    expect(hex(CrossControllerResetResult.encode({ validated: true }))).to.match(/^02000000/);
    expect(hex(CrossControllerResetResult.encode({ initiated: true }))).to.match(/^04000000/);
  });

  it('what Identify Controller tells of one life of a controller', () => {
    const page = IdentifyController.encode({
      ciu: 0x11,
      cirn: 0x8877_6655_4433_2211n,
      cqt: 0x2710,
      ccrl: 4,
      oaesCrossControllerReset: true,
    });
    expect(hex(page.subarray(135, 144))).to.equal('111122334455667788');
    expect(hex(page.subarray(386, 388))).to.equal('1027');
    expect(page[1807]).to.equal(4);
    expect(hex(page.subarray(92, 96))).to.equal('00001000');
  });

  it('the log page 1Eh: a count, then entries of 8 bytes from byte 8 on', () => {
    expect(LogId.crossControllerReset).to.equal(0x1e);
    expect(CrossControllerResetEntry.size).to.equal(8);
    expect(8 + CROSS_CONTROLLER_RESETS_MAX * CrossControllerResetEntry.size).to.equal(4096);
    const page = CrossControllerResetLog.encode({
      ne: 1,
      entries: [{ icid: 0x0203, ciu: 4, acid: 0xffff, ccrs: 2, validated: true, initiated: true }],
    });
    expect(hex(page.subarray(0, 24))).to.equal(
      '0100000000000000' + '03020400ffff0203' + '00'.repeat(8),
    );
  });

  it('the event F4h, asked for by bit 20, and the three statuses', () => {
    expect(AsyncNotice.crossControllerResetCompleted).to.equal(0xf4);
    const asked = AsyncEventConfiguration.encode({ crossControllerReset: true });
    expect(hex(asked)).to.equal('00001000');
    expect([
      Status.crossControllerResetInProgress,
      Status.crossControllerResetLogFull,
      Status.crossControllerResetLimit,
    ]).to.deep.equal([0x13f, 0x140, 0x141]);
  });
});
