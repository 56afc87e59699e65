/**
 * What every place of the tested area may hold. A write that was acknowledged is the only thing that may be there; one
 * that failed may have been executed or not, now or later, until the next acknowledged write of the same place. Pure.
 */
export class WriteLedger {
  readonly places: number;
  /** The generation that was acknowledged last; 0: none. */
  readonly #acknowledged: Uint32Array;
  readonly #inDoubt = new Map<number, number[]>();
  readonly #busy: Uint8Array;
  #next = 1;

  constructor(places: number) {
    this.places = places;
    this.#acknowledged = new Uint32Array(places);
    this.#busy = new Uint8Array(places);
  }

  /** A place takes one request at a time: what a read beside a write may return, nobody can say. */
  lock(place: number): boolean {
    if (this.#busy[place] !== 0) return false;
    this.#busy[place] = 1;
    return true;
  }

  unlock(place: number): void {
    this.#busy[place] = 0;
  }

  /** For a write: never given twice. */
  nextGeneration(): number {
    return this.#next++;
  }

  acknowledged(place: number, generation: number): void {
    this.#acknowledged[place] = generation;
    this.#inDoubt.delete(place);
  }

  failed(place: number, generation: number): void {
    const known = this.#inDoubt.get(place) ?? [];
    this.#inDoubt.set(place, [...known, generation]);
  }

  /** Generations that a read may find there. */
  allowed(place: number): readonly number[] {
    return [this.#acknowledged[place] ?? 0, ...(this.#inDoubt.get(place) ?? [])];
  }

  /** Places where a failed write may be or not. */
  get inDoubt(): number {
    return this.#inDoubt.size;
  }
}
