import { expect } from 'chai';
import { ManualClock, sleep, systemClock, within } from '../../../native/common/clock.ts';
import { NvmeofError } from '../../../native/common/errors.ts';
import { Serial } from '../../../native/common/serial.ts';
import { formatSize, parseSize } from '../../../native/common/size.ts';
import { StateMachine } from '../../../native/common/state-machine.ts';

describe('sizes', () => {
  for (const [text, bytes] of [
    ['0', 0n],
    ['512', 512n],
    ['4k', 4096n],
    ['4K', 4096n],
    ['256MiB', 256n << 20n],
    ['1.5G', 3n << 29n],
    ['2 TiB', 2n << 40n],
    ['10GB', 10_000_000_000n],
    ['1kB', 1000n],
    ['7b', 7n],
    ['18446744073709551616', 1n << 64n],
  ] as const) {
    it(`${text} is ${bytes} bytes`, () => {
      expect(parseSize(text)).to.equal(bytes);
    });
  }

  for (const text of ['', 'k', '-1', '1.5', '0.3k', '4 k k', '1e9', '0x10', '5ib', '12,5M']) {
    it(`"${text}" is refused`, () => {
      expect(() => parseSize(text))
        .to.throw(NvmeofError)
        .with.property('code', 'SIZE_INVALID');
    });
  }

  it('are written in the largest unit', () => {
    expect(
      [0n, 1023n, 1024n, 1536n, 1n << 30n, (1n << 40n) + (1n << 39n)].map(formatSize),
    ).to.deep.equal(['0 B', '1023 B', '1 KiB', '1.5 KiB', '1 GiB', '1.5 TiB']);
    expect(formatSize(2048)).to.equal('2 KiB');
  });
});

describe('clocks', () => {
  it('turned by hand run timers in order of time, also new ones', () => {
    const clock = new ManualClock();
    const seen: string[] = [];
    const note = (name: string) => (): void => {
      seen.push(`${name}@${clock.now()}`);
    };
    clock.after(20, note('b'));
    clock.after(10, () => {
      note('a')();
      clock.after(5, note('c'));
    });
    clock.after(20, note('d'));
    clock.after(15, note('never')).cancel();
    clock.advance(19);
    expect(seen).to.deep.equal(['a@10', 'c@15']);
    clock.advance(1);
    expect(seen).to.deep.equal(['a@10', 'c@15', 'b@20', 'd@20']);
    expect([clock.now(), clock.pending]).to.deep.equal([20, 0]);
  });

  it('wait for a promise no longer than told, and leave no timer', async () => {
    const clock = new ManualClock();
    expect(await within(clock, 100, Promise.resolve())).to.equal(true);
    expect(clock.pending).to.equal(0);
    const late = within(clock, 100, new Promise(() => undefined));
    clock.advance(100);
    expect(await late).to.equal(false);
    let woke = false;
    const sleeping = sleep(clock, 5).then(() => {
      woke = true;
    });
    expect(woke).to.equal(false);
    clock.advance(5);
    await sleeping;
    expect(woke).to.equal(true);
  });

  it('of the system do not fire at once for a delay longer than Node takes', async () => {
    let fired = false;
    const timer = systemClock.after(2 ** 40, () => {
      fired = true;
    });
    await new Promise<void>((resolve) => {
      systemClock.after(20, resolve);
    });
    timer.cancel();
    expect(fired).to.equal(false);
  });
});

describe('state machine', () => {
  it('moves as its table says, and throws with both names else', () => {
    type State = 'new' | 'live' | 'dead';
    const machine = new StateMachine<State>('thing', 'new', {
      new: ['live', 'dead'],
      live: ['dead'],
      dead: [],
    });
    expect([machine.can('live'), machine.can('new')]).to.deep.equal([true, false]);
    machine.move('live');
    expect(() => {
      machine.move('new');
    }).to.throw('thing: live cannot become new');
    expect(machine.state).to.equal('live');
    expect([machine.is('live', 'dead'), machine.is('dead')]).to.deep.equal([true, false]);
  });
});

describe('serial changes', () => {
  it('run one after the other, and go on after a failure', async () => {
    const serial = new Serial();
    const seen: string[] = [];
    const change = (name: string, fail = false) =>
      serial.run(async () => {
        seen.push(`${name} begins`);
        await Promise.resolve();
        seen.push(`${name} ends`);
        if (fail) throw new Error(name);
        return name;
      });
    const first = change('a', true).catch((error: unknown) => (error as Error).message);
    const second = change('b');
    expect([await first, await second]).to.deep.equal(['a', 'b']);
    expect(seen).to.deep.equal(['a begins', 'a ends', 'b begins', 'b ends']);
    await serial.idle();
  });
});
