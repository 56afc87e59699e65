/**
 * A state machine as a table of legal moves. An illegal move is a mistake of the program and throws with both names.
 */
export type Moves<S extends string> = Readonly<Record<S, readonly S[]>>;

export class StateMachine<S extends string> {
  readonly #name: string;
  readonly #moves: Moves<S>;
  #state: S;

  constructor(name: string, initial: S, moves: Moves<S>) {
    this.#name = name;
    this.#state = initial;
    this.#moves = moves;
  }

  get state(): S {
    return this.#state;
  }

  is(...states: readonly S[]): boolean {
    return states.includes(this.#state);
  }

  can(to: S): boolean {
    return this.#moves[this.#state].includes(to);
  }

  move(to: S): void {
    if (!this.can(to)) throw new Error(`${this.#name}: ${this.#state} cannot become ${to}`);
    this.#state = to;
  }
}
