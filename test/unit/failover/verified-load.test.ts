/** The load of a failover test: its rate, its latencies under a stall, and that no wrong byte gets past it. */
import { expect } from 'chai';
import { ManualClock } from '../../../native/common/clock.ts';
import { BlockChecker, fillBlocks } from '../../../tools/failover/block-pattern.ts';
import { CompletionLog } from '../../../tools/failover/completion-log.ts';
import { checkLoad } from '../../../tools/failover/verified-load.ts';
import { WriteLedger } from '../../../tools/failover/write-ledger.ts';
import { FakeIo, LBA, LOAD, pass, prepared, settled } from './support.ts';

describe('block pattern', () => {
  const block = (lba: number, generation: number, seed = 5): Uint8Array => {
    const data = new Uint8Array(LBA);
    fillBlocks(data, LBA, seed, lba, generation);
    return data;
  };

  it('differs with block, generation and seed, and every byte counts', () => {
    const checker = new BlockChecker(LBA, 5);
    expect(checker.holds(block(7, 2), 7, 2)).to.equal(true);
    for (const other of [block(8, 2), block(7, 3), block(7, 2, 6)]) {
      expect(checker.holds(other, 7, 2)).to.equal(false);
      // Not the header alone.
      expect(Buffer.compare(other.subarray(16), block(7, 2).subarray(16))).not.to.equal(0);
    }
    for (let at = 0; at < LBA; at++) {
      const damaged = block(7, 2);
      damaged[at] = (damaged[at] ?? 0) ^ 0x10;
      expect(checker.holds(damaged, 7, 2), `byte ${at}`).to.equal(false);
    }
  });

  it('says what a wrong block is', () => {
    const checker = new BlockChecker(LBA, 5);
    const far = 2 ** 33 + 1;
    expect(checker.describe(block(far, 4))).to.equal(`generation 4 of LBA ${far}`);
    const damaged = block(7, 2).fill(9, 100, 101);
    expect(checker.describe(damaged)).to.equal('generation 2 of LBA 7, damaged');
    expect(checker.describe(new Uint8Array(LBA))).to.equal('zeroes');
    expect(checker.describe(block(7, 2, 6))).to.equal('bytes that this run never wrote');
  });

  it('goes on over blocks that are filled together', () => {
    const two = new Uint8Array(2 * LBA);
    fillBlocks(two, LBA, 5, 40, 9);
    expect(Buffer.compare(two.subarray(LBA), block(41, 9))).to.equal(0);
  });
});

describe('write ledger', () => {
  it('after a failed write old or new may be there, after an acknowledged one that alone', () => {
    const ledger = new WriteLedger(4);
    ledger.acknowledged(2, ledger.nextGeneration());
    ledger.failed(2, ledger.nextGeneration());
    ledger.failed(2, ledger.nextGeneration());
    expect(ledger.allowed(2)).to.deep.equal([1, 2, 3]);
    expect(ledger.inDoubt).to.equal(1);
    ledger.acknowledged(2, ledger.nextGeneration());
    expect(ledger.allowed(2)).to.deep.equal([4]);
    expect(ledger.inDoubt).to.equal(0);
    expect(ledger.allowed(3)).to.deep.equal([0]);
  });

  it('gives a place to one request at a time', () => {
    const ledger = new WriteLedger(2);
    expect([ledger.lock(1), ledger.lock(1), ledger.lock(0)]).to.deep.equal([true, false, true]);
    ledger.unlock(1);
    expect(ledger.lock(1)).to.equal(true);
  });
});

describe('completion log', () => {
  it('keeps what it is given, over the steps in which it grows, up to its limit', () => {
    const log = new CompletionLog(200_000);
    for (let i = 0; i < 200_005; i++) log.add(i, 0.5, i % 3 === 0 ? 'write' : 'read', i % 7 === 0);
    expect(log.length).to.equal(200_000);
    expect(log.full).to.equal(true);
    let index = 0;
    for (const { endMs, operation, failed } of log) {
      if (
        endMs !== index ||
        (operation === 'write') !== (index % 3 === 0) ||
        failed !== (index % 7 === 0)
      ) {
        throw new Error(`entry ${index}`);
      }
      index++;
    }
    expect(index).to.equal(200_000);
  });
});

describe('verified load', () => {
  it('keeps its rate, reads and writes in the share asked for, and finds nothing wrong', async () => {
    const { clock, load } = await prepared({ readPercent: 30 });
    load.start();
    await pass(clock, 2000);
    await settled(clock, load.stop());
    expect(load.log.length).to.be.within(1990, 2001);
    const all = [...load.log];
    expect(all.filter(({ operation }) => operation === 'read').length / all.length).to.be.within(
      0.25,
      0.35,
    );
    expect(all.every(({ latencyMs, failed }) => latencyMs <= 3 && !failed)).to.equal(true);
    expect(await settled(clock, load.verifyAll())).to.equal(0);
    expect(load.blocksVerified).to.be.greaterThan(256);
    expect([load.mismatchCount, load.errorCount, load.inDoubt]).to.deep.equal([0, 0, 0]);
  });

  it('a stall shows in every request that was due in it, not only in those that were sent', async () => {
    const { clock, io, load } = await prepared();
    load.start();
    await pass(clock, 500);
    io.stalledUntil = clock.now() + 300;
    await pass(clock, 1500);
    await settled(clock, load.stop());
    const late = [...load.log].filter(({ latencyMs }) => latencyMs > 10).length;
    // 300 were due; 16 of them could be sent before the rest had to wait.
    expect(late).to.be.within(270, 340);
    expect(Math.max(...[...load.log].map(({ latencyMs }) => latencyMs))).to.be.within(295, 310);
    // What was held back was made up for.
    expect(load.log.length).to.be.within(1980, 2001);
    expect(io.mostInFlight).to.be.at.most(32);
  });

  it('at full speed the answers pace it', async () => {
    const { clock, io, load } = await prepared({ max: true });
    io.latencyMs = 4;
    load.start();
    await pass(clock, 400);
    await settled(clock, load.stop());
    expect(load.log.length).to.be.within(16 * 90, 16 * 101);
    expect(io.inFlight).to.equal(0);
  });

  it('one wrong byte is found, in the run and at its end, and named', async () => {
    const { clock, io, load } = await prepared({ readPercent: 100 });
    io.memory[5 * LBA + 77] = (io.memory[5 * LBA + 77] ?? 0) ^ 1;
    expect(await settled(clock, load.verifyAll())).to.equal(1);
    expect(load.mismatches[0]).to.deep.include({ lba: 5 });
    expect(load.mismatches[0]?.found).to.match(/of LBA 5, damaged/);
    load.start();
    await pass(clock, 1000);
    await settled(clock, load.stop());
    expect(load.mismatchCount).to.be.greaterThan(2);
  });

  it('a lost write is found: acknowledged, and the old data still there', async () => {
    const { clock, io, load } = await prepared();
    let lost = 0;
    io.keeps = (lba) => {
      if (lba !== 10) return true;
      lost++;
      return false;
    };
    load.start();
    await pass(clock, 1500);
    await settled(clock, load.stop());
    expect(lost).to.be.greaterThan(0);
    expect(await settled(clock, load.verifyAll())).to.equal(2);
    expect(new Set(load.mismatches.map(({ lba }) => lba))).to.deep.equal(new Set([10, 11]));
    expect(load.mismatches[0]?.found).to.match(/^generation \d+ of LBA 1\d$/);
  });

  it('failed writes may have been done or not; errors are counted and the run goes on', async () => {
    const { clock, io, load } = await prepared({ readPercent: 20 });
    let count = 0;
    io.onRequest = (operation) => {
      if (++count % 5 === 0) throw Object.assign(new Error(`no ${operation}`), { code: 'GONE' });
    };
    load.start();
    await pass(clock, 800);
    await settled(clock, load.stop());
    io.onRequest = undefined;
    expect(load.errorCount).to.be.within(140, 170);
    expect(load.errors).to.have.length(100);
    expect(load.errors[0]).to.deep.include({ code: 'GONE' });
    expect(load.inDoubt).to.be.greaterThan(0);
    expect(await settled(clock, load.verifyAll())).to.equal(0);
    expect([...load.log].filter(({ failed }) => failed)).to.have.length(load.errorCount);
  });

  it('refuses what does not fit the namespace', () => {
    const io = new FakeIo(new ManualClock());
    expect(() => checkLoad(io, LOAD)).not.to.throw();
    for (const [wrong, message] of [
      [{ requestBytes: 1000 }, /not whole blocks/],
      [{ requestBytes: 0 }, /not whole blocks/],
      [{ areaBytes: 1 << 30 }, /more than the namespace has/],
      [{ depth: 128 }, /too small for 128 requests/],
    ] as const) {
      expect(() => {
        checkLoad(io, { ...LOAD, ...wrong });
      }).to.throw(RangeError, message);
    }
  });
});
