/**
 * Tells systemd what becomes of a service (sd_notify(3)): ready, reloading, stopping. Without NOTIFY_SOCKET in the environment there
 * is nobody to tell; a manager that does not listen is no reason to fail.
 */
import { loadDoor } from '../../native/index.ts';
import { messageOf } from '../../native/common/errors.ts';
import type { Log } from '../../target/index.ts';

/** Characters of a status: a datagram has room for more, the line of systemctl status has not. */
const STATUS_MAX = 500;

export type Notify = (socket: string, state: string) => void;

const byDoor: Notify = (socket, state) => {
  loadDoor().notifyService(socket, state);
};

export class ServiceManager {
  readonly #socket: string | undefined;
  readonly #log: Log;
  readonly #notify: Notify;

  constructor(log: Log, socket = process.env['NOTIFY_SOCKET'], notify: Notify = byDoor) {
    this.#socket = socket === '' ? undefined : socket;
    this.#log = log;
    this.#notify = notify;
  }

  /** `status` is what systemctl status shows, in one line and cut where it is long. */
  ready(status: string): void {
    this.#tell('READY=1', `STATUS=${status.replaceAll('\n', '; ').slice(0, STATUS_MAX)}`);
  }

  reloading(): void {
    const microseconds = process.hrtime.bigint() / 1000n;
    this.#tell('RELOADING=1', `MONOTONIC_USEC=${microseconds}`, 'STATUS=reading the configuration');
  }

  stopping(): void {
    this.#tell('STOPPING=1', 'STATUS=finishing I/O');
  }

  #tell(...lines: readonly string[]): void {
    if (this.#socket === undefined) return;
    try {
      this.#notify(this.#socket, lines.join('\n'));
    } catch (error) {
      this.#log.warn({ error: messageOf(error) }, 'the service manager could not be told');
    }
  }
}
