/**
 * The ANA log page (0Ch) as one controller reads it. A host that reads it in pieces gets the pieces of one page: what stood there
 * when it read from the start. The next read from the start shows by its change count whether that is still so.
 */
import type { AnaPage } from './ana.ts';

export class AnaLogReader {
  readonly #build: (groupsOnly: boolean) => AnaPage;
  #last: { readonly groupsOnly: boolean; readonly page: AnaPage } | undefined;

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

  clear(): void {
    this.#last = undefined;
  }
}
