/**
 * The changed attached namespaces of one controller (log page 04h, NVMe Base 2.1 section 5.1.12.1.5): NSIDs whose attributes,
 * presence or size changed since the page was last read.
 */
import { NSID_ALL } from '../native/wire/sqe.ts';
import { CHANGED_NAMESPACES_MAX, ChangedNamespacesLog } from '../native/wire/logs.ts';

export class ChangedNamespaces {
  readonly #nsids = new Set<number>();

  add(nsid: number): void {
    this.#nsids.add(nsid);
  }

  clear(): void {
    this.#nsids.clear();
  }

  /** Ascending; one entry FFFFFFFFh when there are more than the page holds. */
  page(): Uint8Array {
    const overflow = this.#nsids.size > CHANGED_NAMESPACES_MAX;
    const nsids = overflow ? [NSID_ALL] : [...this.#nsids].sort((a, b) => a - b);
    return ChangedNamespacesLog.encode({ nsids });
  }
}
