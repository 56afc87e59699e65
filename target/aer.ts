/**
 * Asynchronous events of one controller (NVMe Base 2.1 section 5.1.2): requests that wait, events that wait, and the mask: after an
 * event of a log page was reported, no more of it until that page is read without RAE. Which events a host wants is in the
 * Asynchronous Event Configuration feature; the caller asks before it raises one.
 */
import type { Tag } from '../native/index.ts';
import { AsyncEventResult } from '../native/wire/aer.ts';
import { viewOf } from '../native/wire/layout.ts';

/** AERL is this less one. */
export const AER_LIMIT = 4;

export interface AsyncEvent {
  readonly type: number;
  readonly info: number;
  /** Log page that tells more. */
  readonly lid: number;
}

interface Waiting {
  readonly tag: Tag;
  readonly cid: number;
}

export class AsyncEvents {
  readonly #answer: (tag: Tag, result: bigint) => void;
  readonly #requests: Waiting[] = [];
  #events: AsyncEvent[] = [];
  /** Log pages reported, or about to be, and not read since. */
  readonly #masked = new Set<number>();

  constructor(answer: (tag: Tag, result: bigint) => void) {
    this.#answer = answer;
  }

  get full(): boolean {
    return this.#requests.length >= AER_LIMIT;
  }

  get waiting(): number {
    return this.#requests.length;
  }

  /** A request came; the caller has checked `full`. */
  request(tag: Tag, cid: number): void {
    this.#requests.push({ tag, cid });
    this.#deliver();
  }

  raise(event: AsyncEvent): void {
    if (this.#masked.has(event.lid)) return;
    this.#masked.add(event.lid);
    this.#events.push(event);
    this.#deliver();
  }

  /** The page was read without RAE: what it told needs no event, and the next change gets one. */
  logRead(lid: number): void {
    this.#masked.delete(lid);
    this.#events = this.#events.filter((event) => event.lid !== lid);
  }

  /** Takes a waiting request out; undefined when it is not there. */
  take(cid: number): Tag | undefined {
    const index = this.#requests.findIndex((request) => request.cid === cid);
    return index < 0 ? undefined : this.#requests.splice(index, 1)[0]?.tag;
  }

  /** Forgets all; returns the requests that nobody will answer now. */
  clear(): Tag[] {
    this.#events = [];
    this.#masked.clear();
    return this.#requests.splice(0).map(({ tag }) => tag);
  }

  #deliver(): void {
    while (this.#requests.length > 0 && this.#events.length > 0) {
      const request = this.#requests.shift();
      const event = this.#events.shift();
      if (!request || !event) return;
      const dword0 = viewOf(AsyncEventResult.encode(event)).getUint32(0, true);
      this.#answer(request.tag, BigInt(dword0));
    }
  }
}
