/**
 * Lets changes of single things run beside each other (the target puts those of one thing in order), and a change of the whole alone:
 * it waits for those that run, and those that come later wait for it.
 */
export class Gate {
  /** Ends when the last change of the whole has ended. */
  #whole: Promise<unknown> = Promise.resolve();
  readonly #running = new Set<Promise<unknown>>();

  single<T>(change: () => Promise<T>): Promise<T> {
    const result = this.#whole.then(change);
    const ended = result.catch(() => undefined);
    this.#running.add(ended);
    void ended.then(() => this.#running.delete(ended));
    return result;
  }

  whole<T>(change: () => Promise<T>): Promise<T> {
    const before = [...this.#running, this.#whole];
    const result = Promise.all(before).then(change);
    this.#whole = result.catch(() => undefined);
    return result;
  }

  /** Resolves when everything asked so far has ended. */
  async idle(): Promise<void> {
    await Promise.all([...this.#running, this.#whole]);
  }
}
