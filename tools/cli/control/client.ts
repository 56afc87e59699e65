/** Calls a method of a running target over its control socket: one connection, one line there, one line back. */
import { once } from 'node:events';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { createInterface } from 'node:readline';
import { createJSONRPCRequest, isJSONRPCResponse } from 'json-rpc-2.0';
import type { JSONRPCError, JSONRPCResponse } from 'json-rpc-2.0';
import { messageOf } from '../../../native/common/errors.ts';
import { CliError } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { socketsToTry } from './default-socket.ts';

/** Of JSON-RPC 2.0: what was typed is wrong. */
const USAGE_CODES: ReadonlySet<number> = new Set([-32602, -32601, -32600]);

/** Why there is no connection, and what to do about it. */
const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such socket',
  ECONNREFUSED: 'nobody listens there any more',
  EACCES: 'no permission: run this as the user who started it',
  EAGAIN: 'it has too many clients; try again',
};

/** Whose socket it is, for messages. */
export interface Peer {
  readonly name: string;
  readonly remedy: (path: string) => string;
}

export const TARGET: Peer = {
  name: 'target',
  remedy: (path) =>
    `start one with: nvmeof target --export disk.img --control ${path}; or say where it is: --socket PATH`,
};

function noAnswer(
  tried: readonly (readonly [path: string, error: unknown])[],
  { name, remedy }: Peer,
): CliError {
  const reasons = tried.map(([path, error]) => {
    const { code } = error as NodeJS.ErrnoException;
    return `${path}: ${REASONS[code ?? ''] ?? messageOf(error)}`;
  });
  const [first] = tried;
  return new CliError(ExitCode.cannotConnect, `no ${name} answers at ${reasons.join('; ')}`, {
    remedy: remedy(first?.[0] ?? 'PATH'),
    cause: first?.[1],
  });
}

async function open(socket: string | undefined, peer: Peer): Promise<readonly [Socket, string]> {
  const tried: (readonly [string, unknown])[] = [];
  for (const path of socket === undefined ? socketsToTry() : [socket]) {
    const connection = connect(path);
    try {
      await once(connection, 'connect');
      return [connection, path];
    } catch (error) {
      connection.destroy();
      tried.push([path, error]);
    }
  }
  throw noAnswer(tried, peer);
}

/** An answer that is an error, as a failure of the command. */
export class RemoteError extends CliError {
  readonly error: JSONRPCError;

  constructor(error: JSONRPCError) {
    super(USAGE_CODES.has(error.code) ? ExitCode.usage : ExitCode.failed, error.message);
    this.error = error;
  }
}

function toLine(value: unknown): string {
  const plain = (_key: string, entry: unknown): unknown =>
    typeof entry === 'bigint' ? entry.toString() : entry;
  return `${JSON.stringify(value, plain)}\n`;
}

async function firstLine(connection: Socket, path: string, { name }: Peer): Promise<string> {
  const lines = createInterface({ input: connection, crlfDelay: Infinity });
  try {
    for await (const line of lines) return line;
  } catch (error) {
    throw new CliError(ExitCode.disconnected, `${path}: ${messageOf(error)}`);
  } finally {
    lines.close();
  }
  throw new CliError(ExitCode.disconnected, `${path}: the ${name} hung up without an answer`);
}

/** Undefined: it is none. */
function responseOf(line: string): JSONRPCResponse | undefined {
  try {
    const value: unknown = JSON.parse(line);
    const object = typeof value === 'object' && value !== null;
    return object && isJSONRPCResponse(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Resolves with the result. Throws a RemoteError, or a CliError when nobody is there or answers. */
export async function call(
  socket: string | undefined,
  method: string,
  params: object,
  peer = TARGET,
): Promise<unknown> {
  const [connection, path] = await open(socket, peer);
  // What comes after the answer is of no interest; what comes instead of it ends the loop over lines.
  connection.on('error', () => undefined);
  try {
    connection.write(toLine(createJSONRPCRequest(1, method, params)));
    const line = await firstLine(connection, path, peer);
    const response = responseOf(line);
    if (!response) {
      throw new CliError(ExitCode.failed, `${path}: this is no control socket of nvmeof`);
    }
    if (response.error !== undefined) throw new RemoteError(response.error);
    return response.result as unknown;
  } finally {
    connection.destroy();
  }
}
