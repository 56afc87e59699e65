/**
 * Brings the paths of a subsystem into line with what discovery says. It removes only what it added, and only while another
 * path is live: a subsystem whose last path went would fail its I/O, and a target that has just started may list less than
 * there is. An endpoint that is listed, or was, is one of:
 *
 *   ours       added here
 *   theirs     named by the user, or removed by him: left alone until no service lists it any more
 *   refused    could not be added; tried again when a log has changed
 *   removing   was ours; when it is gone it is added again if it is listed by then
 */
import { PATHS_MAX } from '../../native/index.ts';
import { messageOf } from '../../native/common/errors.ts';
import { sameEndpoint } from './discovery-records.ts';
import type { FoundEndpoint } from './discovery-records.ts';
import type { PathChange, PathView } from './events.ts';
import type { PathSpec } from './options.ts';

/** What takes paths: a MultipathSubsystem, or a test. */
export interface PathSink {
  readonly paths: readonly PathView[];
  addPath(spec: PathSpec): Promise<void>;
  removePath(endpoint: string): Promise<void>;
  on(event: 'pathState', listener: (change: PathChange) => void): unknown;
  off(event: 'pathState', listener: (change: PathChange) => void): unknown;
}

export interface PathSetListener {
  added(endpoint: string): void;
  removed(endpoint: string): void;
  warn(error: Error): void;
}

interface Entry {
  readonly found: FoundEndpoint;
  state: 'ours' | 'theirs' | 'refused' | 'removing';
}

type Wanted = ReadonlyMap<string, FoundEndpoint>;

export class DiscoveredPathSet {
  readonly #sink: PathSink;
  readonly #listener: PathSetListener;
  readonly #entries = new Map<string, Entry>();
  #wanted: Wanted = new Map();
  #applying = false;
  #closed = false;
  #warning = '';

  /** @param ours Endpoints among the sink's paths that discovery found. */
  constructor(sink: PathSink, listener: PathSetListener, ours: readonly FoundEndpoint[] = []) {
    this.#sink = sink;
    this.#listener = listener;
    for (const found of ours) {
      const state = this.#pathAt(found.endpoint) ? 'ours' : 'refused';
      this.#entries.set(found.endpoint, { found, state });
    }
    sink.on('pathState', this.#onPathState);
  }

  /** All that is listed now. `changed`: a log is another one than before, so what failed is worth another attempt. */
  set(wanted: Wanted, changed: boolean): void {
    this.#wanted = wanted;
    if (changed) this.#tryAgain();
    this.#apply();
  }

  /** Paths stay as they are. */
  close(): void {
    this.#closed = true;
    this.#sink.off('pathState', this.#onPathState);
  }

  readonly #onPathState = ({ endpoint, to }: PathChange): void => {
    if (to === 'removing') {
      const entry = [...this.#entries.values()].find(({ found }) =>
        sameEndpoint(found.endpoint, endpoint),
      );
      if (entry && entry.state !== 'removing') entry.state = 'theirs';
    } else if (to === 'live') {
      // Not from within: the path that tells this is not yet known to its namespaces.
      this.#applySoon();
    }
  };

  #applySoon(): void {
    if (this.#applying) return;
    this.#applying = true;
    setImmediate(() => {
      this.#applying = false;
      this.#apply();
    });
  }

  #apply(): void {
    if (this.#closed) return;
    this.#dropUnlisted();
    let left = 0;
    for (const found of this.#wanted.values()) {
      if (this.#entries.has(found.endpoint)) continue;
      if (this.#pathAt(found.endpoint)) {
        this.#entries.set(found.endpoint, { found, state: 'theirs' });
      } else if (this.#sink.paths.length < PATHS_MAX) {
        void this.#add(found);
      } else {
        left += 1;
      }
    }
    this.#warnOnce(
      left === 0
        ? ''
        : `discovery lists ${left} endpoints more than the ${PATHS_MAX} paths of a subsystem; they are not used`,
    );
  }

  #dropUnlisted(): void {
    for (const [endpoint, entry] of this.#entries) {
      if (this.#wanted.has(endpoint) || entry.state === 'removing') continue;
      if (entry.state !== 'ours') this.#entries.delete(endpoint);
      else if (this.#anotherIsLive(endpoint)) void this.#remove(entry);
    }
  }

  #tryAgain(): void {
    for (const [endpoint, entry] of this.#entries) {
      if (entry.state === 'refused') this.#entries.delete(endpoint);
      const failed = this.#pathAt(endpoint)?.state === 'failed';
      if (entry.state === 'ours' && failed && this.#wanted.has(endpoint)) void this.#remove(entry);
    }
  }

  async #add(found: FoundEndpoint): Promise<void> {
    const { endpoint, address, port } = found;
    const entry: Entry = { found, state: 'ours' };
    this.#entries.set(endpoint, entry);
    this.#listener.added(endpoint);
    try {
      await this.#sink.addPath({ address, port });
    } catch (error) {
      // A path that is there although its first attempt failed is tried on: it tells its own reasons.
      if (this.#closed || entry.state !== 'ours' || this.#pathAt(endpoint)) return;
      entry.state = 'refused';
      this.#listener.warn(new Error(`path ${endpoint} was not added: ${messageOf(error)}`));
    }
  }

  async #remove(entry: Entry): Promise<void> {
    const { endpoint } = entry.found;
    entry.state = 'removing';
    const path = this.#pathAt(endpoint);
    try {
      if (path) await this.#sink.removePath(path.endpoint);
      this.#listener.removed(endpoint);
    } catch (error) {
      this.#listener.warn(new Error(`path ${endpoint} was not removed: ${messageOf(error)}`));
    }
    this.#entries.delete(endpoint);
    this.#applySoon();
  }

  #pathAt(endpoint: string): PathView | undefined {
    return this.#sink.paths.find((path) => sameEndpoint(path.endpoint, endpoint));
  }

  #anotherIsLive(endpoint: string): boolean {
    return this.#sink.paths.some(
      (path) => path.state === 'live' && !sameEndpoint(path.endpoint, endpoint),
    );
  }

  #warnOnce(text: string): void {
    if (text !== '' && text !== this.#warning) this.#listener.warn(new Error(text));
    this.#warning = text;
  }
}
