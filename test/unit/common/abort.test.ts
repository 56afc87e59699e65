import { expect } from 'chai';
import { getEventListeners } from 'node:events';
import { unlessAborted } from '../../../native/common/abort.ts';

const never = (): Promise<never> => new Promise(() => undefined);

async function failure(promise: Promise<unknown>): Promise<unknown> {
  return promise.then(
    () => undefined,
    (error: unknown) => error,
  );
}

describe('waiting that can be given up', () => {
  it('ends as what is waited for does, and leaves no listener', async () => {
    const { signal } = new AbortController();
    const wrong = new Error('wrong');
    expect(await unlessAborted(Promise.resolve(7), signal)).to.equal(7);
    expect(await failure(unlessAborted(Promise.reject(wrong), signal))).to.equal(wrong);
    expect(getEventListeners(signal, 'abort')).to.deep.equal([]);
    expect(await unlessAborted(Promise.resolve(8), undefined)).to.equal(8);
  });

  it('ends with the reason of the signal, whether it fires later or has fired', async () => {
    const abort = new AbortController();
    const reason = new Error('enough');
    const later = failure(unlessAborted(never(), abort.signal));
    abort.abort(reason);
    expect(await later).to.equal(reason);
    expect(await failure(unlessAborted(never(), abort.signal))).to.equal(reason);
    const text = failure(unlessAborted(never(), AbortSignal.abort('no error')));
    expect(await text)
      .to.be.an.instanceOf(Error)
      .with.property('message', 'no error');
  });

  it('ends with another error where one is made of the reason', async () => {
    const made = unlessAborted(never(), AbortSignal.abort(7), (reason) => {
      return new RangeError(`was ${String(reason)}`);
    });
    expect(await failure(made))
      .to.be.an.instanceOf(RangeError)
      .with.property('message', 'was 7');
  });
});
