/** Waiting that can be given up. */
import { asError } from './errors.ts';

/**
 * What `promise` comes to; rejects with the signal's reason, or with what `errorOf` makes of it, when that fires first. The promise
 * itself goes on. Leaves no listener behind once it has settled.
 */
export async function unlessAborted<T>(
  promise: Promise<T>,
  signal: AbortSignal | undefined,
  errorOf: (reason: unknown) => Error = asError,
): Promise<T> {
  if (!signal) return promise;
  let fail: () => void = () => undefined;
  const aborted = new Promise<never>((_, reject) => {
    fail = () => {
      reject(errorOf(signal.reason));
    };
    if (signal.aborted) fail();
    else signal.addEventListener('abort', fail, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener('abort', fail);
  }
}
