/**
 * Clients that are one too many. They are told, and then it is for them to close: whoever writes into a connection that is closed
 * already gets an error, and never reads what came before. A fixed number may take a moment for that; then the oldest is hung up on.
 */
import type { Socket } from 'node:net';
import type { Clock } from '../../native/common/clock.ts';

const MOMENT_MS = 1000;
const AT_A_TIME = 64;

export class Refusals {
  readonly #clock: Clock;
  /** What ends each that has not closed yet. */
  readonly #waiting = new Map<Socket, () => void>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  refuse(socket: Socket, line: string): void {
    // In order of their coming.
    const [oldest] = this.#waiting.values();
    if (this.#waiting.size >= AT_A_TIME) oldest?.();
    const end = (): void => {
      late.cancel();
      this.#waiting.delete(socket);
      socket.destroy();
    };
    const late = this.#clock.after(MOMENT_MS, end);
    this.#waiting.set(socket, end);
    socket.once('end', end);
    socket.once('close', end);
    // What it writes is not wanted, but has to be taken.
    socket.resume();
    socket.end(line);
  }

  close(): void {
    for (const end of [...this.#waiting.values()]) end();
  }
}
