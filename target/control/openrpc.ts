/** The description of the methods for machines: an OpenRPC 1.3 document with JSON Schemas of what each takes and answers. */
import { z } from 'zod';
import { RPC_CODE_MEANINGS } from './errors.ts';
import { method } from './method.ts';
import type { Method, MethodDescription } from './method.ts';
import { nothing } from './schemas.ts';

type Json = Readonly<Record<string, unknown>>;

/** What a person writes: before defaults and conversions. */
export function jsonSchema(schema: z.ZodType): Json {
  const written = z.toJSONSchema(schema, {
    io: 'input',
    unrepresentable: 'any',
    override: ({ zodSchema, jsonSchema: part }) => {
      // JSON has one kind of number; programs inside this process may give a bigint.
      if (zodSchema._zod.def.type === 'bigint') part.type = 'integer';
    },
  });
  delete written.$schema;
  return written;
}

interface ParamsSchema {
  readonly properties?: Readonly<Record<string, Json>>;
  readonly required?: readonly string[];
}

function describe(method: MethodDescription): Json {
  const { properties = {}, required = [] } = jsonSchema(method.params) as ParamsSchema;
  return {
    name: method.name,
    summary: method.summary,
    paramStructure: 'by-name',
    params: Object.entries(properties).map(([name, schema]) => ({
      name,
      required: required.includes(name),
      schema,
    })),
    result: { name: 'result', schema: jsonSchema(method.result) },
    examples: [
      {
        name: method.name,
        params: Object.entries(method.example).map(([name, value]) => ({
          name,
          value: value as unknown,
        })),
      },
    ],
  };
}

/** `whose`: "target", or what else has such a socket. */
export function discoveryDocument(
  methods: readonly MethodDescription[],
  version: string,
  whose = 'target',
): Json {
  return {
    openrpc: '1.3.2',
    info: {
      title: `nvmeof ${whose}`,
      version,
      description: `Control socket of a running ${whose}: JSON-RPC 2.0, a message a line. Error codes: ${RPC_CODE_MEANINGS.map(
        ([code, meaning]) => `${code} ${meaning}`,
      ).join('; ')}.`,
    },
    methods: methods.map(describe),
  };
}

/** The method that answers with the document. */
export function discoverMethod<Tools>(document: (tools: Tools) => Json): Method<Tools> {
  return method({
    name: 'rpc.discover',
    summary: 'This description of all methods, as an OpenRPC document',
    kind: 'look',
    params: nothing,
    result: z.looseObject({ openrpc: z.string() }),
    example: {},
    run: document,
  });
}
