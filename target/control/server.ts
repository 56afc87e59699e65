/**
 * The control socket of a target, or of another process (`serve`): a Unix socket whose clients send JSON-RPC 2.0, a message a line. However many clients come, a fixed
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

export interface ServeOptions<Tools> {
  readonly path: string;
  /** What the methods act on. */
  readonly tools: Tools;
  readonly methods: readonly Method<Tools>[];
  readonly log?: Log;
  readonly clock?: Clock;
  readonly clientsMax?: number;
  readonly limits?: Partial<ClientLimits>;
  /** Changes of the whole from elsewhere (a signal) go through the same gate. */
  readonly gate?: Gate;
}

export interface ControlOptions
  extends ControlTools, Omit<ServeOptions<ControlTools>, 'tools' | 'methods'> {
  readonly methods?: readonly Method[];
}

export class ControlServer {
  readonly #server: Server;
  readonly #file: SocketFile;
  readonly #clients: Set<Client>;
  readonly #refusals: Refusals;
  readonly #idle: () => Promise<void>;

  private constructor(
    server: Server,
    file: SocketFile,
    clients: Set<Client>,
    refusals: Refusals,
    idle: () => Promise<void>,
  ) {
    this.#server = server;
    this.#file = file;
    this.#clients = clients;
    this.#refusals = refusals;
    this.#idle = idle;
  }

  /** Of a target. Throws as `serve` does. */
  static listen(options: ControlOptions): Promise<ControlServer> {
    const { target, service, methods = METHODS, ...rest } = options;
    return ControlServer.serve({ ...rest, methods, tools: { target, service } });
  }

  /** Throws CONTROL_IN_USE, CONTROL_NO_SOCKET, CONTROL_PATH. */
  static async serve<Tools>(options: ServeOptions<Tools>): Promise<ControlServer> {
    const { path, tools, methods, log = silentLog, clock = systemClock } = options;
    const { clientsMax = CLIENTS_MAX } = options;
    const limits = { ...CLIENT_LIMITS, ...options.limits };
    const dispatcher = new Dispatcher(methods, tools, log, options.gate ?? new Gate());
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
    return new ControlServer(server, file, clients, refusals, () => dispatcher.idle());
  }

  get path(): string {
    return this.#file.path;
  }

  /** Takes no more clients; answers what was asked, and hangs up. */
  async close(): Promise<void> {
    this.#file.remove();
    this.#server.close();
    this.#refusals.close();
    await this.#idle();
    for (const client of this.#clients) client.close();
    await Promise.all([...this.#clients].map(({ closed }) => closed));
  }
}
