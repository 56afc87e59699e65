/**
 * One client of the control socket: its lines are taken one after the other, and each is answered before more is read. All it may hold
 * is bounded: the length of a request, the time until its rest comes, the time it may be silent, the time it may take to read an
 * answer. A client that goes away does not stop the change it asked for.
 */
import type { Socket } from 'node:net';
import { setImmediate } from 'node:timers/promises';
import type { Clock, Timer } from '../../native/common/clock.ts';
import { RpcCode, errorResponse } from './errors.ts';
import { LineBuffer } from './line-buffer.ts';

export interface ClientLimits {
  /** Of one line. */
  readonly requestBytes: number;
  /** From the first byte of a line to its last. */
  readonly requestMs: number;
  /** Without a request. */
  readonly idleMs: number;
  /** For an answer to be read. */
  readonly answerMs: number;
}

export const CLIENT_LIMITS: ClientLimits = {
  requestBytes: 1 << 20,
  requestMs: 10_000,
  idleMs: 300_000,
  answerMs: 30_000,
};

/** Closes a socket when what was written to it has gone out, at the latest after `lateMs`. */
export function hangUp(socket: Socket, clock: Clock, lateMs: number): void {
  if (socket.destroyed) return;
  const late = clock.after(lateMs, () => {
    socket.destroy();
  });
  socket.once('close', () => {
    late.cancel();
  });
  socket.end(() => {
    socket.destroy();
  });
}

/** What the timer waits for. */
type Awaited = 'nothing' | 'request' | 'rest';

export class Client {
  readonly closed: Promise<void>;
  readonly #socket: Socket;
  readonly #clock: Clock;
  readonly #limits: ClientLimits;
  readonly #answer: (text: string) => Promise<string | undefined>;
  readonly #lines = new LineBuffer();
  #busy = false;
  #closing = false;
  #awaited: Awaited = 'nothing';
  #timer: Timer | undefined;

  /** The socket allows half-open connections: a client may end its side and wait for the answer. */
  constructor(
    socket: Socket,
    clock: Clock,
    limits: ClientLimits,
    answer: (text: string) => Promise<string | undefined>,
  ) {
    this.#socket = socket;
    this.#clock = clock;
    this.#limits = limits;
    this.#answer = answer;
    this.closed = new Promise((resolve) => {
      socket.once('close', () => {
        this.#await('nothing');
        resolve();
      });
    });
    // 'close' follows.
    socket.on('error', () => undefined);
    socket.on('data', (chunk: Buffer) => {
      this.#lines.push(chunk);
      void this.#work();
    });
    socket.once('end', () => {
      this.#closing = true;
      if (this.#lines.partialBytes > 0) this.#lines.end();
      void this.#work();
    });
    this.#await('request');
  }

  /** Ends it when what it has asked is answered. */
  close(): void {
    this.#closing = true;
    void this.#work();
  }

  /** Answers every line that is there. */
  async #work(): Promise<void> {
    if (this.#busy) return;
    this.#busy = true;
    this.#socket.pause();
    for (let line = this.#lines.next(); line; line = this.#lines.next()) {
      if (line.length > this.#limits.requestBytes) {
        await this.#refuseLong();
        return;
      }
      this.#await('nothing');
      const text = line.toString('utf8');
      const answer = text.trim() === '' ? undefined : await this.#answer(text);
      if (answer !== undefined && !(await this.#write(`${answer}\n`))) return;
      // Whoever sends many requests at once takes turns with everything else.
      await setImmediate();
    }
    if (this.#lines.partialBytes > this.#limits.requestBytes) {
      await this.#refuseLong();
      return;
    }
    this.#busy = false;
    if (this.#closing) this.#end();
    else {
      this.#await(this.#lines.partialBytes > 0 ? 'rest' : 'request');
      this.#socket.resume();
    }
  }

  /** Starts the time limit of what comes next; that of a request runs from its first byte on. */
  #await(what: Awaited): void {
    if (what === this.#awaited) return;
    this.#awaited = what;
    this.#timer?.cancel();
    const { requestMs, idleMs } = this.#limits;
    if (what === 'request') {
      this.#timer = this.#clock.after(idleMs, () => {
        this.#end();
      });
    } else if (what === 'rest') {
      const text = `the rest of the request did not come within ${requestMs} ms`;
      this.#timer = this.#clock.after(requestMs, () => {
        void this.#refuse(RpcCode.tooSlow, text);
      });
    }
  }

  #refuseLong(): Promise<void> {
    const { requestBytes } = this.#limits;
    const text = `the request is longer than ${requestBytes} bytes; end each with a newline, and ask for less at a time`;
    return this.#refuse(RpcCode.tooLarge, text);
  }

  async #refuse(code: number, message: string): Promise<void> {
    this.#busy = true;
    this.#socket.pause();
    await this.#write(`${JSON.stringify(errorResponse(null, code, message))}\n`);
    this.#end();
  }

  /** False: the client has gone, or does not read. */
  async #write(text: string): Promise<boolean> {
    const socket = this.#socket;
    if (socket.destroyed) return false;
    if (socket.write(text)) return true;
    return new Promise((resolve) => {
      const late = this.#clock.after(this.#limits.answerMs, () => {
        socket.destroy();
      });
      const settle = (): void => {
        late.cancel();
        socket.off('drain', settle);
        socket.off('close', settle);
        resolve(!socket.destroyed);
      };
      socket.once('drain', settle);
      socket.once('close', settle);
    });
  }

  #end(): void {
    this.#await('nothing');
    hangUp(this.#socket, this.#clock, this.#limits.answerMs);
  }
}
