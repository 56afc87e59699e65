/**
 * The control channel of a guest: scripts go in, exit code and output come back, one line each (guest-agent.sh says
 * how). Many scripts may be under way. When the guest dies, all of them fail at once.
 */
import type { Socket } from 'node:net';

export interface Output {
  readonly code: number;
  readonly stdout: string;
  readonly stderr: string;
}

interface Waiting {
  resolve(output: Output): void;
  reject(error: Error): void;
}

export class Channel {
  readonly #socket: Socket;
  readonly #waiting = new Map<string, Waiting>();
  #next = 0;
  #pending: Buffer[] = [];
  #dead: Error | undefined;
  /** The kernel release that the guest reports once it is up. */
  readonly ready: Promise<string>;
  #onReady!: Waiting['resolve'];
  #onDead!: (error: Error) => void;

  /** `whyGone` explains a guest that closed the channel. */
  constructor(socket: Socket, whyGone: () => string) {
    this.#socket = socket;
    const ready = new Promise<Output>((resolve, reject) => {
      this.#onReady = resolve;
      this.#onDead = reject;
    });
    this.ready = ready.then((output) => output.stdout);
    this.ready.catch(() => undefined);
    socket.on('data', (chunk: Buffer) => {
      this.#onData(chunk);
    });
    socket.on('error', () => undefined); // 'close' follows
    socket.on('close', () => {
      this.fail(new Error(whyGone()));
    });
  }

  run(script: string, seconds: number): Promise<Output> {
    if (this.#dead) return Promise.reject(this.#dead);
    const id = String((this.#next += 1));
    const answer = new Promise<Output>((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
    });
    this.#socket.write(`${id} ${seconds} ${Buffer.from(script).toString('base64')}\n`);
    return answer;
  }

  /** Every script under way and every later one fails with this. */
  fail(error: Error): void {
    this.#dead ??= error;
    this.#onDead(this.#dead);
    for (const waiting of this.#waiting.values()) waiting.reject(this.#dead);
    this.#waiting.clear();
    this.#socket.destroy();
  }

  #onData(chunk: Buffer): void {
    let begin = 0;
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10, begin)) {
      const line = Buffer.concat([...this.#pending, chunk.subarray(begin, end)]).toString('latin1');
      this.#pending = [];
      begin = end + 1;
      this.#onLine(line);
    }
    if (begin < chunk.length) this.#pending.push(chunk.subarray(begin));
  }

  #onLine(line: string): void {
    const [id = '', code = '', stdout = '', stderr = ''] = line.split(' ');
    const text = (base64: string): string => Buffer.from(base64, 'base64').toString();
    if (id === 'ready') {
      this.#onReady({ code: 0, stdout: code, stderr: '' });
      return;
    }
    const waiting = this.#waiting.get(id);
    this.#waiting.delete(id);
    waiting?.resolve({ code: Number(code), stdout: text(stdout), stderr: text(stderr) });
  }
}
