/**
 * A process of its own that is a target through the Target library, and does what its parent says over IPC: `start`, then
 * methods of Target by name. Its log goes to stderr, one JSON record a line. Ends with its parent, and in order at SIGTERM.
 */
import { applyFaults, Target } from '../../../target/index.ts';
import type { Faults, Log, StartOptions, TargetOptions } from '../../../target/index.ts';
import type { Answer, Order } from './live-target.ts';

const write =
  (level: string) =>
  (fields: object, message: string): void => {
    process.stderr.write(
      `${new Date().toISOString()} ${level} ${message} ${JSON.stringify(fields)}\n`,
    );
  };
const log: Log = {
  debug: () => undefined,
  info: write('info'),
  warn: write('warn'),
  error: write('error'),
};

let target: Target | undefined;

async function obey({ method, args }: Order): Promise<unknown> {
  if (method === 'start') {
    target = await Target.start(args[0] as TargetOptions, { log, ...(args[1] as StartOptions) });
    return undefined;
  }
  if (!target) throw new Error('not started');
  if (method === 'faults') {
    applyFaults(target, args[0] as Faults);
    return undefined;
  }
  if (method === 'controllers') return target.controllers;
  if (method === 'counters') return target.counters();
  return (target[method] as (...all: unknown[]) => unknown).apply(target, [...args]);
}

process.on('message', (order: Order) => {
  const answer = (result: Answer): void => {
    process.send?.(result);
  };
  obey(order).then(
    (value) => {
      answer({ id: order.id, value });
    },
    (error: unknown) => {
      const { message, code } = error as NodeJS.ErrnoException;
      answer({ id: order.id, error: message, code });
    },
  );
});

process.on('SIGTERM', () => {
  void target?.close().then(() => {
    process.exit(0);
  });
});

process.on('disconnect', () => {
  process.exit(0);
});
