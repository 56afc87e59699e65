import { expect } from 'chai';
import { AnaGroupDescriptor, AnaLogHeader, encodeAnaLog } from '../../../native/wire/ana.ts';
import { captureNames, readExchanges } from '../../support/captures.ts';

describe('wire, ANA log page', () => {
  it('reads and writes what a Linux target sent, to the byte', () => {
    let pages = 0;
    for (const capture of captureNames()) {
      const exchanges = readExchanges(capture).flat();
      for (const { sqe, qid, received } of exchanges) {
        if (qid !== 0 || sqe[0] !== 0x02 || sqe[40] !== 0x0c || received.length === 0) continue;
        pages++;
        const { chgcnt, ngrps } = AnaLogHeader.decode(received);
        expect(ngrps, capture).to.equal(1);
        const group = AnaGroupDescriptor.read(
          new DataView(received.buffer, received.byteOffset, received.length),
          AnaLogHeader.size,
        );
        expect([group.grpid, group.state], capture).to.deep.equal([1, 1]);
        const nsids = Array.from({ length: group.nnsids }, (_, index) =>
          received.readUInt32LE(48 + 4 * index),
        );
        const page = encodeAnaLog(chgcnt, [
          { group: 1, changeCount: group.chgcnt, state: group.state, nsids },
        ]);
        expect(Buffer.from(page).equals(received.subarray(0, page.length)), capture).to.equal(true);
        expect(received.subarray(page.length).every((byte) => byte === 0)).to.equal(true);
      }
    }
    expect(pages).to.be.greaterThan(3);
  });

  it('lays groups out one behind the other', () => {
    const page = encodeAnaLog(0x0102_0304_0506_0708n, [
      { group: 2, changeCount: 5n, state: 0xf, nsids: [1, 0xfffe] },
      { group: 128, changeCount: 0n, state: 3, nsids: [] },
    ]);
    expect(Buffer.from(page).toString('hex')).to.equal(
      '0807060504030201' +
        '0200000000000000' +
        '02000000020000000500000000000000' +
        '0f000000000000000000000000000000' +
        '01000000feff0000' +
        '80000000000000000000000000000000' +
        '03000000000000000000000000000000',
    );
  });
});
