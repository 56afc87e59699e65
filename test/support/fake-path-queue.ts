/**
 * A queue over several paths as FakeDoor has it: commands go to the path of the best rank, back from a lost one to the next, and
 * wait while there is none. No writes are held here: what native does about those is tested natively.
 */
import { RANK_UNUSABLE } from '../../native/index.ts';
import type { DoorEvent, PathOptions, QueueId, Tag } from '../../native/index.ts';
import type { FakeDoor, SubmittedCommand } from './fake-door.ts';

type Completion = Extract<DoorEvent, { readonly kind: 'completion' }>;

const HOST_PATHING_ERROR = 0x4370;
const STATUS_TYPE_PATH = 3;
const DO_NOT_RETRY = 0x4000;

export class FakePathQueue {
  readonly #id: QueueId;
  readonly #door: FakeDoor;
  readonly paths = new Map<number, PathOptions>();
  readonly #sent = new Map<
    Tag,
    { readonly path: number; readonly incarnation: number; readonly command: SubmittedCommand }
  >();
  #parked: SubmittedCommand[] = [];
  #failing = false;

  constructor(id: QueueId, door: FakeDoor) {
    this.#id = id;
    this.#door = door;
  }

  get parked(): number {
    return this.#parked.length;
  }

  submit(command: SubmittedCommand): void {
    const [best] = [...this.paths]
      .filter(([, { rank }]) => rank !== RANK_UNUSABLE)
      .sort(([, a], [, b]) => a.rank - b.rank);
    if (best) {
      const [path, { queue, incarnation }] = best;
      this.#sent.set(command.tag, { path, incarnation, command });
      this.#door.forward(this, { ...command, queue });
    } else if (this.#failing) {
      this.#end(command.tag, { transport: 'ok', status: HOST_PATHING_ERROR });
    } else {
      this.#parked.push(command);
    }
  }

  cameBack(event: Completion): void {
    const sent = this.#sent.get(event.tag);
    this.#sent.delete(event.tag);
    if (!sent) return;
    const refused =
      ((event.status >> 8) & 7) === STATUS_TYPE_PATH && (event.status & DO_NOT_RETRY) === 0;
    if (event.transport === 'queueDied') {
      this.paths.delete(sent.path);
      this.submit(sent.command);
    } else if (refused) {
      this.paths.delete(sent.path);
      const { path, incarnation } = sent;
      const { status } = event;
      this.#door.emit({ kind: 'pathRefused', queue: this.#id, path, incarnation, status });
      this.submit(sent.command);
    } else {
      this.#door.runtime.dispatch({ ...event, queue: this.#id });
    }
  }

  set(path: number, options: PathOptions): void {
    if (!this.#door.queues.has(options.queue)) return;
    this.paths.set(path, options);
    this.#again();
  }

  remove(path: number): void {
    this.paths.delete(path);
  }

  queueGone(queue: QueueId): void {
    for (const [path, options] of this.paths) if (options.queue === queue) this.paths.delete(path);
  }

  setFailing(failing: boolean): void {
    this.#failing = failing;
    this.#again();
  }

  close(): void {
    for (const { tag } of this.#parked.splice(0)) this.#end(tag, { transport: 'cancelled' });
    for (const tag of this.#sent.keys()) this.#end(tag, { transport: 'cancelled' });
  }

  #again(): void {
    const waiting = this.#parked;
    this.#parked = [];
    for (const command of waiting) this.submit(command);
  }

  #end(tag: Tag, how: Pick<Completion, 'transport'> & Partial<Pick<Completion, 'status'>>): void {
    const nothing = { status: 0, result: 0n, data: new Uint8Array() };
    this.#door.emit({ kind: 'completion', queue: this.#id, tag, ...nothing, ...how });
  }
}
