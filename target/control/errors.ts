/**
 * Errors as the control socket tells them: the codes of JSON-RPC 2.0, and of our own in the range it leaves to servers. `data.code` is
 * the code of the error as everywhere else ('SUBSYSTEM_UNKNOWN'); these numbers only sort them.
 */
import { JSONRPCErrorCode, createJSONRPCErrorResponse } from 'json-rpc-2.0';
import type { JSONRPCErrorResponse, JSONRPCID } from 'json-rpc-2.0';
import { NvmeofError, messageOf } from '../../native/common/errors.ts';
import type { Problem } from '../config.ts';

export const RpcCode = {
  parseError: JSONRPCErrorCode.ParseError as number,
  invalidRequest: JSONRPCErrorCode.InvalidRequest as number,
  methodNotFound: JSONRPCErrorCode.MethodNotFound as number,
  invalidParams: JSONRPCErrorCode.InvalidParams as number,
  internalError: JSONRPCErrorCode.InternalError as number,
  failed: -32000,
  notThere: -32001,
  thereAlready: -32002,
  notNow: -32003,
  tooManyClients: -32004,
  tooLarge: -32005,
  tooSlow: -32006,
} as const;

/** For documentation. */
export const RPC_CODE_MEANINGS: readonly (readonly [code: number, meaning: string])[] = [
  [RpcCode.parseError, 'the line is no JSON'],
  [RpcCode.invalidRequest, 'the JSON is no request of JSON-RPC 2.0'],
  [RpcCode.methodNotFound, 'there is no such method'],
  [
    RpcCode.invalidParams,
    'parameters are wrong; `data.problems` names each place and what is right there',
  ],
  [RpcCode.internalError, 'a mistake of the target, which its log tells more of'],
  [RpcCode.failed, 'the change failed, and nothing has changed'],
  [RpcCode.notThere, 'what the request names is not there'],
  [RpcCode.thereAlready, 'what the request would add is there already'],
  [RpcCode.notNow, 'not in this state: it is being removed, disabled, or the target ends'],
  [RpcCode.tooManyClients, 'too many clients are connected; try again later'],
  [RpcCode.tooLarge, 'the request, or the batch, is too large'],
  [RpcCode.tooSlow, 'the rest of a request did not come in time'],
];

/** The first row whose pattern fits says what kind of failure a code is. */
const KINDS: readonly (readonly [pattern: RegExp, code: number])[] = [
  [/_UNKNOWN$/, RpcCode.notThere],
  [/_(EXISTS|DUPLICATE)$/, RpcCode.thereAlready],
  [/^(CONFIG|SIZE|ADDRESS|UUID|NQN|ARGUMENT)_INVALID$/, RpcCode.invalidParams],
  [
    /^(TARGET_CLOSING|SUBSYSTEM_REMOVING|NAMESPACE_DISABLED|PATH_NOT_LIVE|PATH_LAST)$/,
    RpcCode.notNow,
  ],
];

export interface ErrorData {
  readonly code: string;
  readonly object?: string;
  readonly problems?: readonly Problem[];
}

/** Parameters that the schema of a method refuses. */
export class ParamsError extends NvmeofError {
  readonly problems: readonly Problem[];

  constructor(message: string, problems: readonly Problem[]) {
    super('PARAMS_INVALID', message);
    this.problems = problems;
  }
}

export function errorResponse(
  id: JSONRPCID,
  code: number,
  message: string,
  data?: ErrorData,
): JSONRPCErrorResponse {
  return createJSONRPCErrorResponse(id, code, message, data);
}

export function responseOf(id: JSONRPCID, error: unknown): JSONRPCErrorResponse {
  if (error instanceof ParamsError) {
    const { code, problems, message } = error;
    return errorResponse(id, RpcCode.invalidParams, message, { code, problems });
  }
  if (error instanceof NvmeofError) {
    const [, code] = KINDS.find(([pattern]) => pattern.test(error.code)) ?? [];
    const { object } = error;
    const data = { code: error.code, ...(object === undefined ? {} : { object }) };
    return errorResponse(id, code ?? RpcCode.failed, error.message, data);
  }
  const message = `internal error: ${messageOf(error)}`;
  return errorResponse(id, RpcCode.internalError, message, { code: 'INTERNAL' });
}
