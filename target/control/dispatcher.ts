/**
 * From the text of one message to the text of its answer: JSON-RPC 2.0 with batches and notifications. The entries of a batch run one
 * after the other, in their order.
 */
import { setImmediate } from 'node:timers/promises';
import type { JSONRPCID, JSONRPCRequest, JSONRPCResponse } from 'json-rpc-2.0';
import { JSONRPCServer } from 'json-rpc-2.0';
import { z } from 'zod';
import { messageOf } from '../../native/common/errors.ts';
import { formatProblem, problemsOf } from '../config.ts';
import type { Log } from '../log.ts';
import { ParamsError, RpcCode, errorResponse, responseOf } from './errors.ts';
import type { Gate } from './gate.ts';
import type { ControlTools, Method, MethodDescription } from './method.ts';

export const BATCH_MAX = 100;

const id = z.union([z.string().max(1000), z.number(), z.null()], {
  error: 'must be text, a number or null',
});

const request = z.strictObject({
  jsonrpc: z.literal('2.0', { error: 'must be "2.0"' }),
  method: z.string({ error: 'must be the name of a method' }),
  params: z
    .union([z.record(z.string(), z.unknown()), z.array(z.unknown())], {
      error: 'must be an object',
    })
    .optional(),
  id: id.optional(),
});

function toJson(value: unknown): string {
  return JSON.stringify(value, (_, entry: unknown) => {
    if (typeof entry !== 'bigint') return entry;
    return entry <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(entry) : entry.toString();
  });
}

function idOf(value: unknown): JSONRPCID {
  const given = typeof value === 'object' && value !== null ? (value as { id?: unknown }).id : null;
  const parsed = id.safeParse(given);
  return parsed.success ? parsed.data : null;
}

function parseParams(method: MethodDescription, params: unknown = {}): unknown {
  if (Array.isArray(params)) {
    throw new ParamsError(`${method.name}: params must be an object with names, not an array`, []);
  }
  const parsed = method.params.safeParse(params);
  if (parsed.success) return parsed.data;
  const problems = problemsOf(parsed.error);
  throw new ParamsError(`${method.name}: ${problems.map(formatProblem).join('; ')}`, problems);
}

export class Dispatcher<Tools = ControlTools> {
  readonly #server: JSONRPCServer;
  readonly #gate: Gate;
  readonly #tools: Tools;
  readonly #log: Log;

  constructor(methods: readonly Method<Tools>[], tools: Tools, log: Log, gate: Gate) {
    this.#gate = gate;
    this.#tools = tools;
    this.#log = log;
    // Its errors have all become responses before it sees them.
    this.#server = new JSONRPCServer({ errorListener: () => undefined });
    for (const method of methods) {
      this.#server.addMethodAdvanced(method.name, (one) => this.#call(method, one));
    }
  }

  /** Undefined: nothing is to be answered. Never rejects. */
  async answer(text: string): Promise<string | undefined> {
    let message: unknown;
    try {
      message = JSON.parse(text);
    } catch (error) {
      return toJson(errorResponse(null, RpcCode.parseError, `not JSON: ${messageOf(error)}`));
    }
    const response = Array.isArray(message)
      ? await this.#batch(message)
      : await this.#single(message);
    return response === undefined ? undefined : toJson(response);
  }

  /** Resolves when every change asked for so far has ended. */
  idle(): Promise<void> {
    return this.#gate.idle();
  }

  async #batch(
    entries: readonly unknown[],
  ): Promise<JSONRPCResponse | JSONRPCResponse[] | undefined> {
    if (entries.length === 0) {
      return errorResponse(null, RpcCode.invalidRequest, 'the batch is empty');
    }
    if (entries.length > BATCH_MAX) {
      const message = `the batch has ${entries.length} requests; send at most ${BATCH_MAX} at a time`;
      return errorResponse(null, RpcCode.tooLarge, message);
    }
    const responses: JSONRPCResponse[] = [];
    for (const entry of entries) {
      const response = await this.#single(entry);
      if (response !== undefined) responses.push(response);
      // Between them everything else has its turn.
      await setImmediate();
    }
    return responses.length === 0 ? undefined : responses;
  }

  async #single(message: unknown): Promise<JSONRPCResponse | undefined> {
    const parsed = request.safeParse(message);
    if (!parsed.success) {
      const problems = problemsOf(parsed.error).map(formatProblem).join('; ');
      const text = `no request of JSON-RPC 2.0: ${problems}`;
      return errorResponse(idOf(message), RpcCode.invalidRequest, text);
    }
    const one = parsed.data as JSONRPCRequest;
    if (!this.#server.hasMethod(one.method)) {
      if (one.id === undefined) return undefined;
      const text = `no method "${one.method.slice(0, 100)}"; rpc.discover lists what there is`;
      return errorResponse(one.id, RpcCode.methodNotFound, text);
    }
    return (await this.#server.receive(one)) ?? undefined;
  }

  async #call(method: Method<Tools>, one: JSONRPCRequest): Promise<JSONRPCResponse | null> {
    try {
      const params = parseParams(method, one.params);
      const result = await this.#run(method, params);
      if (method.kind !== 'look') this.#log.info({ method: method.name }, 'control: done');
      return one.id === undefined ? null : { jsonrpc: '2.0', id: one.id, result };
    } catch (error) {
      const response = responseOf(one.id ?? null, error);
      const internal = response.error.code === RpcCode.internalError;
      const stack = internal && error instanceof Error ? { stack: error.stack } : {};
      this.#log[internal ? 'error' : 'info'](
        { method: method.name, error: messageOf(error), ...stack },
        'control: refused',
      );
      return one.id === undefined ? null : response;
    }
  }

  #run(method: Method<Tools>, params: unknown): unknown {
    const run = (): Promise<unknown> => Promise.resolve(method.run(this.#tools, params));
    if (method.kind === 'change') return this.#gate.single(run);
    return method.kind === 'whole' ? this.#gate.whole(run) : run();
  }
}
