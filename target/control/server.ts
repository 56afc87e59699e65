/**
 * The control socket of a target: a Unix socket whose clients send JSON-RPC 2.0, a message a line. However many clients come, a fixed
 * number is served; the others are told to try again, so that they leave file descriptors for hosts and files.
 */
import { createServer } from 'node:net';
import type { Server, Socket } from 'node:net';
import { systemClock } from '../../native/common/clock.ts';
import type { Clock } from '../../native/common/clock.ts';
import { silentLog } from '../log.ts';
import type { Log } from '../log.ts';
import { CLIENT_LIMITS, Client } from './client.ts';
import type { ClientLimits } from './client.ts';
import { Dispatcher } from './dispatcher.ts';
import { RpcCode, errorResponse } from './errors.ts';
import type { ControlTools, Method } from './method.ts';
import { METHODS } from './methods.ts';
import { Gate } from './gate.ts';
import { Refusals } from './refusals.ts';
import { SocketFile } from './socket-file.ts';

export const CLIENTS_MAX = 64;
export interface ControlOptions extends ControlTools {
  readonly path: string;
  readonly log?: Log;
  readonly clock?: Clock;
  readonly clientsMax?: number;
  readonly limits?: Partial<ClientLimits>;
  readonly methods?: readonly Method[];
  /** Changes of the whole from elsewhere (a signal) go through the same gate. */
  readonly gate?: Gate;
}

export class ControlServer {
  readonly #server: Server;
  readonly #file: SocketFile;
  readonly #clients: Set<Client>;
  readonly #refusals: Refusals;
  readonly #dispatcher: Dispatcher;

  private constructor(
    server: Server,
    file: SocketFile,
    clients: Set<Client>,
    refusals: Refusals,
    dispatcher: Dispatcher,
  ) {
    this.#server = server;
    this.#file = file;
    this.#clients = clients;
    this.#refusals = refusals;
    this.#dispatcher = dispatcher;
  }

  /** Throws CONTROL_IN_USE, CONTROL_NO_SOCKET, CONTROL_PATH. */
  static async listen(options: ControlOptions): Promise<ControlServer> {
    const { path, target, service, log = silentLog, clock = systemClock } = options;
    const { clientsMax = CLIENTS_MAX, methods = METHODS } = options;
    const limits = { ...CLIENT_LIMITS, ...options.limits };
    const dispatcher = new Dispatcher(
      methods,
      { target, service },
      log,
      options.gate ?? new Gate(),
    );
    const clients = new Set<Client>();
    let full = false;
    const refusals = new Refusals(clock);
    const refuse = (socket: Socket): void => {
      if (!full) log.warn({ clients: clientsMax }, 'control: too many clients, refusing more');
      full = true;
      socket.on('error', () => undefined);
      const text = `${clientsMax} clients are connected, which is the limit; try again later`;
      refusals.refuse(
        socket,
        `${JSON.stringify(errorResponse(null, RpcCode.tooManyClients, text))}\n`,
      );
    };
    const server = createServer({ allowHalfOpen: true }, (socket) => {
      if (clients.size >= clientsMax) {
        refuse(socket);
        return;
      }
      const client = new Client(socket, clock, limits, (text) => dispatcher.answer(text));
      clients.add(client);
      void client.closed.then(() => {
        clients.delete(client);
        full = false;
      });
    });
    const file = await SocketFile.open(server, path);
    // Such as EMFILE: who cannot be accepted now waits.
    server.on('error', (error) => {
      log.warn({ error: error.message }, 'control: a client could not be accepted');
    });
    log.info({ socket: path }, 'control socket');
    return new ControlServer(server, file, clients, refusals, dispatcher);
  }

  get path(): string {
    return this.#file.path;
  }

  /** Takes no more clients; answers what was asked, and hangs up. */
  async close(): Promise<void> {
    this.#file.remove();
    this.#server.close();
    this.#refusals.close();
    await this.#dispatcher.idle();
    for (const client of this.#clients) client.close();
    await Promise.all([...this.#clients].map(({ closed }) => closed));
  }
}
