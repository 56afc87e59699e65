/**
 * The shape of a method of the control socket, and what methods act on. A method is a row of a table (methods.ts): dispatch, schema,
 * documentation and the check of parameters are all derived from the row.
 */
import type { z } from 'zod';
import type { Target } from '../target.ts';

export const LOG_LEVELS = ['trace', 'debug', 'info', 'warn', 'error'] as const;
export type LogLevel = (typeof LOG_LEVELS)[number];

/** The process around the target. */
export interface Service {
  readonly version: string;
  /** The configuration file it was started with. */
  readonly configFile: string | undefined;
  logLevel: LogLevel;
  /** Reads the configuration file again and applies the difference; resolves with what was done. */
  reload(): Promise<readonly string[]>;
  /** Ends the target; resolves when it has. */
  stop(): Promise<void>;
}

export interface ControlTools {
  readonly target: Target;
  readonly service: Service;
}

/**
 *   look    changes nothing, waits for nobody
 *   change  of one thing
 *   whole   alone: no change runs beside it
 *   serve   whether hosts are served at all: waits for no change, so that a target whose change hangs can be ended
 */
export type MethodKind = 'look' | 'change' | 'whole' | 'serve';

/** What documentation and the check of parameters need of a method. */
export interface MethodDescription {
  readonly name: string;
  readonly summary: string;
  readonly kind: MethodKind;
  readonly params: z.ZodType;
  readonly result: z.ZodType;
  /** Parameters as the documentation shows them; a test runs them through the schema. */
  readonly example: object;
}

/** `Tools`: what it acts on. */
export interface Method<Tools = ControlTools> extends MethodDescription {
  /** `params` as the schema gave them. Resolves when what it changed holds for all I/O. */
  readonly run: (tools: Tools, params: unknown) => unknown;
}

interface MethodOf<Tools, P extends z.ZodType> extends Omit<
  MethodDescription,
  'params' | 'example'
> {
  readonly params: P;
  readonly example: z.input<P> & object;
  readonly run: (tools: Tools, params: z.output<P>) => unknown;
}

/** Checks the row's types, and forgets them. */
export function method<P extends z.ZodType, Tools = ControlTools>(
  row: MethodOf<Tools, P>,
): Method<Tools> {
  return { ...row, run: (tools, params) => row.run(tools, params as z.output<P>) };
}
