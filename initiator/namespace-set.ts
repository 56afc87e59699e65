/**
 * The namespaces of one controller as last scanned. A scan keeps the object of a namespace that stayed the same one,
 * marks those that went, and says what changed. Scans run one after the other.
 */
import { activeNamespaces, examineNamespace, findDuplicate } from './namespace-scan.ts';
import type {
  NamespaceFacts,
  NamespaceIds,
  ScanContext,
  SkippedNamespace,
} from './namespace-scan.ts';
import { Namespace } from './namespace.ts';
import type { NamespaceHost } from './namespace.ts';
import type { CommandOptions } from './queue.ts';

export interface NamespaceChange {
  readonly added: readonly Namespace[];
  readonly removed: readonly Namespace[];
  /** Resized, or with other properties. */
  readonly changed: readonly Namespace[];
}

function sameIds(a: NamespaceIds, b: NamespaceIds): boolean {
  return a.uuid === b.uuid && a.nguid === b.nguid && a.eui64 === b.eui64;
}

/** With other ids it is another namespace; with other blocks the same one, but no request of before fits it. */
function sameNamespace(a: NamespaceFacts, b: NamespaceFacts): boolean {
  return sameIds(a.ids, b.ids) && a.lbaSize === b.lbaSize;
}

export class NamespaceSet {
  readonly limits: NamespaceHost;
  readonly #context: Omit<ScanContext, 'options'>;
  readonly #byNsid = new Map<number, Namespace>();
  #skipped: readonly SkippedNamespace[] = [];
  #last: Promise<unknown> = Promise.resolve();

  constructor(host: NamespaceHost, context: Omit<ScanContext, 'options'>) {
    this.limits = host;
    this.#context = context;
  }

  get skipped(): readonly SkippedNamespace[] {
    return this.#skipped;
  }

  get(nsid: number): Namespace | undefined {
    return this.#byNsid.get(nsid);
  }

  list(): readonly Namespace[] {
    return [...this.#byNsid.values()].sort((a, b) => a.nsid - b.nsid);
  }

  /** Asks for the active list, and examines those in `which` and those not known yet. */
  scan(options: CommandOptions, which: 'all' | ReadonlySet<number>): Promise<NamespaceChange> {
    const scan = this.#last.then(() => this.#scan({ ...this.#context, options }, which));
    this.#last = scan.catch(() => undefined);
    return scan;
  }

  /** Nothing is changed before everything is known: a scan that fails leaves the set as it was. */
  async #scan(context: ScanContext, which: 'all' | ReadonlySet<number>): Promise<NamespaceChange> {
    const found = new Map<number, NamespaceFacts>();
    const skipped: SkippedNamespace[] = [];
    for (const nsid of await activeNamespaces(context)) {
      const known = this.#byNsid.get(nsid);
      if (known && which !== 'all' && !which.has(nsid)) {
        found.set(nsid, known.facts);
        continue;
      }
      const facts = await examineNamespace(context, nsid);
      if (!facts) continue;
      if ('reason' in facts) {
        skipped.push(facts);
        continue;
      }
      const twin = findDuplicate(facts, found.values());
      if (twin)
        skipped.push({ nsid, reason: `it has the same identity as namespace ${twin.nsid}` });
      else found.set(nsid, facts);
    }
    this.#skipped = skipped;
    return this.#apply(found);
  }

  #apply(found: ReadonlyMap<number, NamespaceFacts>): NamespaceChange {
    const added: Namespace[] = [];
    const removed: Namespace[] = [];
    const changed: Namespace[] = [];
    for (const [nsid, namespace] of this.#byNsid) {
      const facts = found.get(nsid);
      if (facts && sameNamespace(namespace.facts, facts)) {
        if (differs(namespace.facts, facts)) changed.push(namespace);
        namespace.update(facts);
      } else {
        namespace.update(undefined);
        this.#byNsid.delete(nsid);
        removed.push(namespace);
      }
    }
    for (const [nsid, facts] of found) {
      if (this.#byNsid.has(nsid)) continue;
      const namespace = new Namespace(this.limits, facts);
      this.#byNsid.set(nsid, namespace);
      added.push(namespace);
    }
    return { added, removed, changed };
  }
}

function differs(a: NamespaceFacts, b: NamespaceFacts): boolean {
  return (
    a !== b &&
    (a.lbaCount !== b.lbaCount ||
      a.writeProtected !== b.writeProtected ||
      a.data.anagrpid !== b.data.anagrpid)
  );
}
