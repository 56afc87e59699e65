/** The product's code of what went wrong; 'none' when nothing did. Other errors are thrown on. */
import { NvmeofError } from '../../native/common/errors.ts';

function codeIn(error: unknown): string {
  if (error instanceof NvmeofError) return error.code;
  throw error;
}

export function codeOf(promise: Promise<unknown>): Promise<string> {
  return promise.then(() => 'none', codeIn);
}

export function codeThrownBy(act: () => void): string {
  try {
    act();
  } catch (error) {
    return codeIn(error);
  }
  return 'none';
}
