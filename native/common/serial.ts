/**
 * Runs asynchronous changes one after the other, in the order asked; a failing one does not stop the next.
 */
export class Serial {
  #last: Promise<unknown> = Promise.resolve();

  run<T>(change: () => Promise<T>): Promise<T> {
    const result = this.#last.then(change, change);
    this.#last = result.catch(() => undefined);
    return result;
  }

  /** Resolves when everything asked so far has ended. */
  async idle(): Promise<void> {
    await this.#last;
  }
}
