import { expect } from 'chai';
import { Gate } from '../../../../target/control/gate.ts';

/** Changes that end when they are told to, and what happened in order. */
class Changes {
  readonly events: string[] = [];
  readonly #ends = new Map<string, () => void>();

  run(name: string): () => Promise<string> {
    return async () => {
      this.events.push(`${name} begins`);
      await new Promise<void>((resolve) => this.#ends.set(name, resolve));
      this.events.push(`${name} ends`);
      return name;
    };
  }

  async end(name: string): Promise<void> {
    this.#ends.get(name)?.();
    await turn();
  }
}

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

describe('the gate of changes', () => {
  it('lets single ones run beside each other, and a whole one alone', async () => {
    const gate = new Gate();
    const changes = new Changes();
    const all = [
      gate.single(changes.run('a')),
      gate.single(changes.run('b')),
      gate.whole(changes.run('W')),
      gate.single(changes.run('c')),
      gate.whole(changes.run('X')),
    ];
    await turn();
    expect(changes.events).to.deep.equal(['a begins', 'b begins']);
    await changes.end('a');
    expect(changes.events.at(-1)).to.equal('a ends');
    await changes.end('b');
    expect(changes.events.at(-1)).to.equal('W begins');
    await changes.end('W');
    expect(changes.events.at(-1)).to.equal('c begins');
    await changes.end('c');
    expect(changes.events.at(-1)).to.equal('X begins');
    await changes.end('X');
    expect(await Promise.all(all)).to.deep.equal(['a', 'b', 'W', 'c', 'X']);
    await gate.idle();
  });

  it('is not held up by those that fail', async () => {
    const gate = new Gate();
    const fail = (): Promise<never> => Promise.reject(new Error('no'));
    const results = await Promise.allSettled([
      gate.single(fail),
      gate.whole(fail),
      gate.single(() => Promise.resolve(1)),
      gate.whole(() => Promise.resolve(2)),
    ]);
    expect(results.map(({ status }) => status)).to.deep.equal([
      'rejected',
      'rejected',
      'fulfilled',
      'fulfilled',
    ]);
  });
});
