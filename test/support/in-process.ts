/**
 * Target and initiator as libraries in the test's own process, over real sockets on loopback. Whatever a test opened in
 * its scope is closed when it is over, also when it fails.
 */
import { randomFillSync } from 'node:crypto';
import { connect } from '../../initiator/index.ts';
import type { ConnectOptions, Controller } from '../../initiator/index.ts';
import { Target } from '../../target/index.ts';
import type { SubsystemOptions, TargetOptions } from '../../target/index.ts';
import { loopbackAddress } from './processes.ts';

export const NQN = 'nqn.2026-11.io.nvmeof:in-process';

export interface Scope {
  readonly target: Target;
  readonly address: string;
  /** A host of its own, on a source address of its own. */
  connect(options?: Partial<ConnectOptions>): Promise<Controller>;
}

export interface ScopeOptions extends Omit<TargetOptions, 'ports' | 'subsystems'> {
  readonly namespaces?: SubsystemOptions['namespaces'];
  readonly subsystem?: Omit<SubsystemOptions, 'nqn' | 'namespaces'>;
  readonly address?: string;
  /** Its devices take faults. */
  readonly faultInjection?: boolean;
}

/** Starts a target with one subsystem, runs the test, and closes the hosts, then the target. */
export async function withTarget(
  options: ScopeOptions,
  run: (scope: Scope) => Promise<void>,
): Promise<void> {
  const { namespaces = [], subsystem, address = loopbackAddress(), ...more } = options;
  const { faultInjection = false, ...rest } = more;
  const target = await Target.start(
    { ...rest, ports: [{ address }], subsystems: [{ ...subsystem, nqn: NQN, namespaces }] },
    { faultInjection },
  );
  const controllers: Controller[] = [];
  try {
    await run({
      target,
      address,
      connect: async (wanted = {}) => {
        const controller = await connect({ address, nqn: NQN, ...wanted });
        controllers.push(controller);
        return controller;
      },
    });
  } finally {
    await Promise.all(controllers.map((controller) => controller.disconnect()));
    await target.close();
  }
}

export function randomBytes(length: number): Uint8Array {
  return randomFillSync(new Uint8Array(length));
}

/** What a promise rejects with; an error of its own when it does not. */
export async function failureOf(promise: Promise<unknown>): Promise<unknown> {
  let value: unknown;
  try {
    value = await promise;
  } catch (error) {
    return error;
  }
  throw new Error(`expected a rejection, got ${String(value)}`);
}

/** Rejects when the promise takes longer than that. */
export async function within<T>(ms: number, what: string, promise: Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => {
      reject(new Error(`not within ${ms} ms: ${what}`));
    }, ms);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
