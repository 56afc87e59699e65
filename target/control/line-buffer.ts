/** Cuts what arrives into lines. Each byte is looked at once, in however small pieces it comes. */
const NEWLINE = 0x0a;

export class LineBuffer {
  readonly #lines: Buffer[] = [];
  #partial: Buffer[] = [];
  #partialBytes = 0;

  /** Bytes of the line that is not complete. */
  get partialBytes(): number {
    return this.#partialBytes;
  }

  push(chunk: Buffer): void {
    let start = 0;
    for (;;) {
      const end = chunk.indexOf(NEWLINE, start);
      if (end < 0) break;
      this.#add(chunk.subarray(start, end));
      this.end();
      start = end + 1;
    }
    if (start < chunk.length) this.#add(chunk.subarray(start));
  }

  /** What came so far is a line, also without its newline. */
  end(): void {
    this.#lines.push(Buffer.concat(this.#partial));
    this.#partial = [];
    this.#partialBytes = 0;
  }

  next(): Buffer | undefined {
    return this.#lines.shift();
  }

  #add(piece: Buffer): void {
    this.#partial.push(piece);
    this.#partialBytes += piece.length;
  }
}
