/** `connect`: from options to a controller that can be used. */
import { Association } from './association.ts';
import { Controller } from './controller.ts';
import { systemEnvironment } from './environment.ts';
import type { Environment } from './environment.ts';
import { ConnectError } from './errors.ts';
import { resolveOptions } from './options.ts';
import type { ConnectOptions, ResolvedOptions } from './options.ts';

/** An attempt that its signal ended fails with one kind of error, wherever it was. */
export function asCancelled(error: unknown, options: ResolvedOptions): unknown {
  if (options.signal?.aborted !== true) return error;
  return new ConnectError('CONNECT_CANCELLED', `the connect to ${options.endpoint} was cancelled`, {
    cause: options.signal.reason,
  });
}

/** With another environment; `connect` uses the system's. */
export async function connectIn(
  environment: Environment,
  options: ConnectOptions,
): Promise<Controller> {
  const resolved = resolveOptions(options);
  try {
    resolved.signal?.throwIfAborted();
    return await Controller.start(await Association.open(resolved, environment));
  } catch (error) {
    throw asCancelled(error, resolved);
  }
}

/**
 * Connects to a subsystem and resolves when its controller is enabled, its queues are connected and its namespaces
 * are known. Rejects with a ConnectError that says why not; then nothing is left behind.
 */
export function connect(options: ConnectOptions): Promise<Controller> {
  return connectIn(systemEnvironment, options);
}
