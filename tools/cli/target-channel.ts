/**
 * What a target that was started with `--inject-faults` does for its parent process, and for nobody else: it comes over
 * Node's channel between a process and its child, which has no name that others could open.
 */
import { z } from 'zod';
import { applyFaults } from '../../target/index.ts';
import type { AnaStateName, Faults, Target } from '../../target/index.ts';
import { messageOf } from '../../native/common/errors.ts';
import { CliError } from './context.ts';
import { ExitCode } from './exit-codes.ts';

/** Native checks what the rules say. */
const faults = z.custom<Faults>((value) => typeof value === 'object' && value !== null);

const request = z.discriminatedUnion('call', [
  z.object({ id: z.number(), call: z.literal('faults'), faults }),
  z.object({
    ...{ id: z.number(), call: z.literal('resize') },
    ...{ nqn: z.string(), nsid: z.number(), bytes: z.string() },
  }),
  z.object({
    ...{ id: z.number(), call: z.literal('ana') },
    ...{ nqn: z.string(), group: z.number(), state: z.string() },
  }),
  z.object({ id: z.number(), call: z.literal('counters') }),
]);

export type TargetRequest = z.input<typeof request>;

async function answer(target: Target, message: unknown): Promise<unknown> {
  const asked = request.parse(message);
  switch (asked.call) {
    case 'faults':
      applyFaults(target, asked.faults);
      return undefined;
    case 'resize':
      await target.resizeNamespace(asked.nqn, asked.nsid, BigInt(asked.bytes));
      return undefined;
    case 'ana':
      // The target checks the state's name.
      await target.setAnaState(asked.nqn, {
        group: asked.group,
        state: asked.state as AnaStateName,
      });
      return undefined;
    case 'counters':
      return target.counters();
  }
}

/** Throws when nobody could ever ask. */
export function requireParent(): void {
  if (process.send !== undefined) return;
  throw new CliError(ExitCode.usage, '--inject-faults is for programs that start this one', {
    remedy: 'run nvmeof failover-test, or start the target with an IPC channel (docs/failover.md)',
  });
}

export function serveParent(
  target: Target,
  log: { warn: (fields: object, text: string) => void },
): void {
  log.warn({}, 'packets meet faults when the parent process says so');
  process.on('message', (message: unknown) => {
    const { id } = message as { readonly id?: unknown };
    const reply = (fields: object): void => {
      // The parent may be gone.
      if (process.connected) process.send?.({ id, ...fields }, undefined, {}, () => undefined);
    };
    answer(target, message).then(
      (value) => {
        reply({ value });
      },
      (error: unknown) => {
        reply({ error: messageOf(error) });
      },
    );
  });
  // Who started it for a test wants it to end with the test.
  process.once('disconnect', () => {
    process.kill(process.pid, 'SIGTERM');
  });
  // The channel alone must not keep the process.
  process.channel?.unref();
}
