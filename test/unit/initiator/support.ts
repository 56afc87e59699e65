/** An initiator over a fake door and a clock turned by hand. */
import { ManualClock } from '../../../native/common/clock.ts';
import { SharedRuntime } from '../../../native/shared-runtime.ts';
import { connectIn } from '../../../initiator/connect.ts';
import type { Controller } from '../../../initiator/controller.ts';
import type { Environment } from '../../../initiator/environment.ts';
import type { ConnectOptions } from '../../../initiator/options.ts';
import { FakeDoor } from '../../support/fake-door.ts';
import { FakeController, NQN } from './fake-controller.ts';

export const HOST_NQN = 'nqn.2014-08.org.nvmexpress:uuid:0f1e2d3c-4b5a-4678-8a9b-acbdcedfe0f1';
export const HOST_ID = '0f1e2d3c-4b5a-4678-8a9b-acbdcedfe0f1';

export interface Bench {
  readonly door: FakeDoor;
  readonly clock: ManualClock;
  readonly peer: FakeController;
  readonly environment: Environment;
  readonly connect: (options?: Partial<ConnectOptions>) => Promise<Controller>;
}

export function makeBench(): Bench {
  const door = new FakeDoor();
  const clock = new ManualClock();
  const peer = new FakeController(door);
  const shared = new SharedRuntime((options) => {
    door.start({ ...options, onWake: () => undefined });
    return door.runtime;
  });
  let next = 1;
  const environment: Environment = {
    clock,
    source: {
      routedAddress: () => Promise.resolve('192.0.2.1'),
      randomLoopback: () => `127.9.9.${next++}`,
    },
    numaDistance: () => 10,
    acquire: (options) => shared.acquire(options),
    identity: () => ({ hostNqn: HOST_NQN, hostId: HOST_ID }),
  };
  return {
    door,
    clock,
    peer,
    environment,
    connect: (options = {}) =>
      connectIn(environment, { address: '127.0.0.1', nqn: NQN, ...options }),
  };
}

/** Lets everything that can run without time passing run. */
export async function settle(): Promise<void> {
  await new Promise((resolve) => {
    setImmediate(resolve);
  });
}

/** The error a promise rejects with, of the wanted class. */
export async function rejection<T extends Error>(
  promise: Promise<unknown>,
  type: abstract new (...args: never[]) => T,
): Promise<T> {
  try {
    await promise;
  } catch (error) {
    if (error instanceof type) return error;
    throw error;
  }
  throw new Error(`resolved, ${type.name} was expected`);
}
