/**
 * A service manager's socket for tests: what arrives at NOTIFY_SOCKET, a datagram each. JavaScript has no such sockets, so a line of
 * Python reads it.
 */
import { spawn, spawnSync } from 'node:child_process';
import type { ChildProcess } from 'node:child_process';
import { eventually } from './counters.ts';

const READER = `
import json, socket, sys
name = sys.argv[1]
end = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
end.bind("\\0" + name[1:] if name[0] == "@" else name)
print(json.dumps("listening"), flush=True)
while True:
    print(json.dumps(end.recv(65536).decode()), flush=True)
`;

export class NotifySocket {
  readonly path: string;
  /** In order of arrival. */
  readonly states: string[] = [];
  readonly #child: ChildProcess;

  static available(): boolean {
    return spawnSync('python3', ['-c', '']).error === undefined;
  }

  /** A path, or with a leading @ an abstract name. */
  static async open(path: string): Promise<NotifySocket> {
    const socket = new NotifySocket(path);
    await socket.until((states) => states.includes('listening'));
    socket.states.length = 0;
    return socket;
  }

  private constructor(path: string) {
    this.path = path;
    this.#child = spawn('python3', ['-c', READER, path], { stdio: ['ignore', 'pipe', 'inherit'] });
    let text = '';
    this.#child.stdout?.on('data', (chunk: Buffer) => {
      const lines = (text + chunk.toString()).split('\n');
      text = lines.pop() ?? '';
      this.states.push(...lines.map((line) => JSON.parse(line) as string));
    });
  }

  async until(done: (states: readonly string[]) => boolean): Promise<void> {
    await eventually(
      () => done(this.states),
      10_000,
      () => `another state than ${JSON.stringify(this.states)}`,
    );
  }

  close(): void {
    this.#child.kill();
  }
}
