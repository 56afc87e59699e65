/**
 * The ANA log page (0Ch) as one controller reads it. A host that reads it in pieces gets the pieces of one page: what stood there
 * when it read from the start. The next read from the start shows by its change count whether that is still so.
 */
import type { AnaPage } from './ana.ts';

export class AnaLogReader {
  readonly #build: (groupsOnly: boolean) => AnaPage;
  #last: { readonly groupsOnly: boolean; readonly page: AnaPage } | undefined;
  #onRead: (() => void)[] = [];

  constructor(build: (groupsOnly: boolean) => AnaPage) {
    this.#build = build;
  }

  read(groupsOnly: boolean, fromStart: boolean): Uint8Array {
    if (fromStart || this.#last?.groupsOnly !== groupsOnly) {
      this.#last = { groupsOnly, page: this.#build(groupsOnly) };
    }
    return this.#last.page.bytes;
  }

  /** Whether what was read last is older than a page with this change count. */
  stale(changeCount: bigint): boolean {
    return this.#last?.page.changeCount !== changeCount;
  }

  /** The host follows ANA: it has read the page. */
  get followed(): boolean {
    return this.#last !== undefined;
  }

  /** The host has all of what was read last, and it is not stale. */
  current(): void {
    for (const resolve of this.#onRead.splice(0)) resolve();
  }

  /** Resolves at the next `current`, or when the association has ended. */
  nextRead(): Promise<void> {
    return new Promise((resolve) => {
      this.#onRead.push(resolve);
    });
  }

  clear(): void {
    this.#last = undefined;
    this.current();
  }
}
