/**
 * The opt-in HTTP port of a target: `/metrics` for Prometheus, `/statistics` as JSON for `nvmeof stats`. It reads and changes
 * nothing, has no secrets, and answers one kind of request.
 */
import { createServer } from 'node:http';
import type { Server, ServerResponse } from 'node:http';
import { once } from 'node:events';
import { messageOf } from '../../../native/common/errors.ts';
import type { TargetStatistics } from '../../../target/index.ts';
import type { HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { metricsText } from './metrics.ts';

const CONTENT: Readonly<
  Record<string, readonly [type: string, body: (statistics: TargetStatistics) => Promise<string>]>
> = {
  '/metrics': ['text/plain; version=0.0.4; charset=utf-8', metricsText],
  '/statistics': [
    'application/json',
    (statistics) => Promise.resolve(`${JSON.stringify(statistics)}\n`),
  ],
};

async function answer(
  path: string,
  response: ServerResponse,
  statistics: () => TargetStatistics,
): Promise<void> {
  const content = CONTENT[path];
  if (!content) {
    response.writeHead(404, { 'content-type': 'text/plain' });
    response.end(`There is ${Object.keys(CONTENT).join(' and ')}.\n`);
    return;
  }
  const [type, body] = content;
  try {
    const text = await body(statistics());
    response.writeHead(200, { 'content-type': type, 'cache-control': 'no-store' });
    response.end(text);
  } catch (error) {
    response.writeHead(500, { 'content-type': 'text/plain' });
    response.end(`${messageOf(error)}\n`);
  }
}

export class StatisticsServer {
  readonly #server: Server;

  private constructor(server: Server) {
    this.#server = server;
  }

  static async listen(
    { address, port }: HostPort,
    statistics: () => TargetStatistics,
  ): Promise<StatisticsServer> {
    const server = createServer((request, response) => {
      if (request.method !== 'GET') {
        response.writeHead(405, { allow: 'GET' });
        response.end();
        return;
      }
      const [path = ''] = (request.url ?? '').split('?');
      void answer(path, response, statistics);
    });
    server.listen(port, address);
    try {
      await once(server, 'listening');
    } catch (error) {
      throw new CliError(
        ExitCode.failed,
        `cannot serve metrics at ${address}:${port}: ${messageOf(error)}`,
      );
    }
    return new StatisticsServer(server);
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, 'close');
  }
}
