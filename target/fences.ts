/**
 * Who may still write to the namespaces of one subsystem, here and in other targets on this machine that share its backings; and the
 * end of such a controller on its host's demand (docs/stale-writes.md). A life that may write has its 'alive' mark on every shared
 * backing before its first I/O queue exists, and until its last command has ended. Nothing here runs per command.
 */
import type { ControllerIds } from './ana-config.ts';
import { messageOf } from '../native/common/errors.ts';
import type { Timer } from '../native/common/clock.ts';
import type { BackingId } from '../native/index.ts';
import type { Context } from './context.ts';
import { keyOf, markOf, randomInstanceNumber, sameHost } from './life.ts';
import type { Life, MarkPurpose } from './life.ts';

/** How often a target looks whether another one asks for the end of a controller. */
export const WATCH_MS = 250;
/** How often, and how long, it waits for a life of another target to end. */
export const LOOK_MS = 50;
export const WAIT_MS = 30_000;
/** Lives that ended here and are still known. */
const ENDED_MAX = 1024;
const CIU_MAX = 255;

/** A namespace that can be written to. */
export interface WritableBacking {
  readonly id: BackingId;
  /** For people. */
  readonly name: string;
  readonly shared: boolean;
  /** Marks on it reach everybody who can write to it. */
  readonly marks: boolean;
}

interface Living {
  readonly life: Life;
  readonly end: (reason: string) => Promise<void>;
}

/** `over`: true when nothing of that life can write any more; false: not known, and not waited for any longer. */
export type Fence =
  | { readonly kind: 'fence'; readonly over: Promise<boolean> }
  | { readonly kind: 'refused'; readonly reason: string };

const ENDED: Fence = { kind: 'fence', over: Promise.resolve(true) };

/** For the end of a life in another target. */
class Wait {
  readonly over: Promise<boolean>;
  timer: Timer | undefined;
  #resolve: (over: boolean) => void = () => undefined;

  constructor() {
    this.over = new Promise((resolve) => {
      this.#resolve = resolve;
    });
  }

  end(over: boolean): void {
    this.timer?.cancel();
    this.#resolve(over);
  }
}

export class Fences {
  readonly #context: Context;
  readonly #nqn: string;
  readonly #range: ControllerIds;
  readonly #backings = new Map<BackingId, WritableBacking>();
  readonly #lives = new Map<string, Living>();
  readonly #ended = new Set<string>();
  readonly #waits = new Map<string, Wait>();
  #watch: Timer | undefined;
  #lastCiu = 1 + Number(randomInstanceNumber() % BigInt(CIU_MAX));

  constructor(context: Context, nqn: string, range: ControllerIds) {
    this.#context = context;
    this.#nqn = nqn;
    this.#range = range;
  }

  // Backings.

  /** Before the first write can reach it. Throws when the lives there are cannot be marked on it. */
  addBacking(backing: WritableBacking): void {
    if (backing.shared && backing.marks) {
      for (const { life } of this.#lives.values()) this.#mark(backing, life, 'alive', true);
    }
    this.#backings.set(backing.id, backing);
    this.#settleWatch();
  }

  /** When no command can reach it any more. Its marks go with it. */
  removeBacking(id: BackingId): void {
    this.#backings.delete(id);
    this.#settleWatch();
  }

  get #shared(): WritableBacking[] {
    return [...this.#backings.values()].filter(({ shared }) => shared);
  }

  get #marked(): WritableBacking[] {
    return this.#shared.filter(({ marks }) => marks);
  }

  #mark(backing: WritableBacking, life: Life, purpose: MarkPurpose, on: boolean): void {
    this.#context.runtime.door.setMark(backing.id, markOf(this.#nqn, life, purpose), on);
  }

  #markedElsewhere(life: Life, purpose: MarkPurpose): boolean {
    const mark = markOf(this.#nqn, life, purpose);
    const { door } = this.#context.runtime;
    return this.#marked.some(({ id }) => door.markedElsewhere(id, mark));
  }

  // Lives here.

  /**
   * A new life of a controller, which `end` ends. Call before it may have an I/O queue; throws when it cannot be marked, and then it
   * may have none.
   */
  begin(
    cntlid: number,
    host: Pick<Life, 'hostNqn' | 'hostId'>,
    end: (reason: string) => Promise<void>,
  ): Life {
    this.#lastCiu = (this.#lastCiu % CIU_MAX) + 1;
    const life: Life = {
      cntlid,
      ciu: this.#lastCiu,
      cirn: randomInstanceNumber(),
      hostNqn: host.hostNqn,
      hostId: host.hostId,
    };
    for (const backing of this.#marked) this.#mark(backing, life, 'alive', true);
    this.#lives.set(keyOf(life), { life, end });
    this.#settleWatch();
    return life;
  }

  /** Nothing of it is in flight any more. */
  over(life: Life): void {
    this.#lives.delete(keyOf(life));
    this.#ended.add(keyOf(life));
    for (const oldest of this.#ended) {
      if (this.#ended.size <= ENDED_MAX) break;
      this.#ended.delete(oldest);
    }
    for (const backing of this.#marked) this.#mark(backing, life, 'alive', false);
    this.#settleWatch();
  }

  #settleWatch(): void {
    const needed = this.#lives.size > 0 && this.#marked.length > 0;
    if (needed)
      this.#watch ??= this.#context.clock.after(WATCH_MS, () => {
        this.#look();
      });
    else {
      this.#watch?.cancel();
      this.#watch = undefined;
    }
  }

  #look(): void {
    this.#watch = undefined;
    for (const { life, end } of this.#lives.values()) {
      if (this.#isWanted(life)) void end('its host asked another target for its end');
    }
    this.#settleWatch();
  }

  // Words by marks. What fails is logged, and then nothing is known.

  #isWanted(life: Life): boolean {
    return this.#tried(life, () => this.#markedElsewhere(life, 'wanted')) ?? false;
  }

  /** undefined: not known. */
  #isAlive(life: Life): boolean | undefined {
    return this.#tried(life, () => this.#markedElsewhere(life, 'alive'));
  }

  /** That it is wanted, or no more; false when that cannot be said. */
  #say(life: Life, on: boolean): boolean {
    const said = this.#tried(life, () => {
      for (const backing of this.#marked) this.#mark(backing, life, 'wanted', on);
      return true;
    });
    return said ?? false;
  }

  #tried<T>({ cntlid }: Life, speak: () => T): T | undefined {
    try {
      return speak();
    } catch (error) {
      this.#context.log.error(
        { subsystemNqn: this.#nqn, cntlid, error: messageOf(error) },
        'targets that share a backing cannot speak to each other',
      );
      return undefined;
    }
  }

  // The end of a life, here or in another target.

  /** `wanted` with the host that asks. */
  fence(wanted: Life): Fence {
    const key = keyOf(wanted);
    const living = this.#lives.get(key);
    if (living) {
      if (!sameHost(living.life, wanted)) {
        return { kind: 'refused', reason: `controller ${wanted.cntlid} belongs to another host` };
      }
      return { kind: 'fence', over: living.end('reset by its host').then(() => true) };
    }
    if (this.#ended.has(key)) return ENDED;
    return this.#shared.length === 0 ? this.#withoutSharing(wanted) : this.#elsewhere(wanted);
  }

  /** The backings are this target's alone: nobody has them who is not known here, unless the id says so. */
  #withoutSharing({ cntlid }: Life): Fence {
    const { first, last } = this.#range;
    if (cntlid >= first && cntlid <= last) return ENDED;
    const reason = `controller ${cntlid} is not one of this target's (${first} to ${last}), and no namespace here is marked shared`;
    return { kind: 'refused', reason };
  }

  #elsewhere(wanted: Life): Fence {
    const blind = this.#shared.find(({ marks }) => !marks);
    if (blind) {
      const reason = `${blind.name} is shared, but it is no file on a local file system: other machines may write to it, and nothing here tells when they have ended`;
      return { kind: 'refused', reason };
    }
    const key = keyOf(wanted);
    const wait = this.#waits.get(key) ?? new Wait();
    if (!this.#waits.has(key)) {
      this.#waits.set(key, wait);
      void wait.over.then(() => {
        this.#say(wanted, false);
      });
      this.#waitFor(wanted, wait, this.#context.clock.now() + WAIT_MS);
    }
    return { kind: 'fence', over: wait.over };
  }

  /** Asks the other target to end it, and looks until its mark is gone. */
  #waitFor(wanted: Life, wait: Wait, deadline: number): void {
    const { clock } = this.#context;
    const alive = this.#say(wanted, true) ? this.#isAlive(wanted) : undefined;
    if (alive === true && clock.now() < deadline) {
      wait.timer = clock.after(LOOK_MS, () => {
        this.#waitFor(wanted, wait, deadline);
      });
      return;
    }
    this.#waits.delete(keyOf(wanted));
    wait.end(alive === false);
  }

  /** Waits for nobody any more. */
  close(): void {
    for (const wait of this.#waits.values()) wait.end(false);
    this.#waits.clear();
  }
}
