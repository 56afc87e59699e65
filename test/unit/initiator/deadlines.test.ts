import { expect } from 'chai';
import { Deadlines } from '../../../initiator/deadlines.ts';
import { ManualClock } from '../../../native/common/clock.ts';

describe('deadlines of commands', () => {
  function setUp() {
    const clock = new ManualClock();
    const fired: string[] = [];
    const deadlines = new Deadlines<string>(clock, (name, ms) => {
      fired.push(`${name}@${clock.now()}`);
      if (name === 'again') deadlines.add(ms, 'later');
    });
    const add = (ms: number, name: string) => deadlines.add(ms, name);
    return { clock, deadlines, fired, add };
  }

  it('fall due in order, each in its time, with one timer for each limit', () => {
    const { clock, fired, add } = setUp();
    add(100, 'a');
    add(30, 'b');
    clock.advance(10);
    add(100, 'c');
    expect(clock.pending).to.equal(2);
    clock.advance(500);
    expect(fired).to.deep.equal(['b@30', 'a@100', 'c@110']);
    expect(clock.pending).to.equal(0);
  });

  it('that were removed do not fire, wherever they stood', () => {
    const { clock, fired, add } = setUp();
    const [first, , middle, , last] = ['a', 'b', 'c', 'd', 'e'].map((name) => add(50, name));
    middle?.remove();
    last?.remove();
    first?.remove();
    first?.remove();
    clock.advance(50);
    expect(fired).to.deep.equal(['b@50', 'd@50']);
  });

  it('leave no timer once the one that was set has found nothing', () => {
    const { clock, deadlines, fired, add } = setUp();
    for (let ms = 1; ms <= 100; ms++) add(ms, 'x').remove();
    expect(deadlines.timers).to.equal(100);
    clock.advance(100);
    expect(fired).to.deep.equal([]);
    expect(deadlines.timers).to.equal(0);
  });

  it('may be added from inside one that falls due', () => {
    const { clock, fired, add } = setUp();
    add(20, 'again');
    clock.advance(39);
    expect(fired).to.deep.equal(['again@20']);
    clock.advance(1);
    expect(fired).to.deep.equal(['again@20', 'later@40']);
  });

  it('stop with their queue', () => {
    const { clock, deadlines, fired, add } = setUp();
    add(20, 'a');
    deadlines.stop();
    expect(clock.pending).to.equal(0);
    clock.advance(100);
    expect(fired).to.deep.equal([]);
  });
});
