/** A running target's statistics, fetched from the port that its `--metrics` opened. */
import { z } from 'zod';
import { messageOf } from '../../../native/common/errors.ts';
import type { TargetStatistics } from '../../../target/index.ts';
import type { HostPort } from '../arguments.ts';
import { CliError } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';

const number = z.number();
const text = z.string();
const snapshot = z.object({
  atMs: number,
  queues: z.array(
    z.object({
      ...{ id: number, cntlid: number, qid: number, reactor: number, depth: number },
      ...{ subsystemNqn: text, hostNqn: text, hostId: text, peer: text },
      ...{ reads: number, writes: number, others: number, errors: number },
      ...{ bytesRead: number, bytesWritten: number },
      latency: z.array(z.tuple([number, number])),
      transport: z
        .object({
          ...{ packetsIn: number, packetsOut: number, acksIn: number, acksOut: number },
          ...{ retransmitsTimeout: number, retransmitsNak: number },
          ...{ retransmitsImplied: number, retransmitsNotReady: number },
        })
        .optional(),
    }),
  ),
  reactors: z.array(
    z.object({
      ...{ index: number, core: number, busyNs: number, idleNs: number, cpuNs: number },
      ...{ ports: z.array(text), ioQueues: number, adminQueues: number, load: number },
    }),
  ),
  counters: z.record(text, number),
});

export async function fetchStatistics({ address, port }: HostPort): Promise<TargetStatistics> {
  const host = address.includes(':') ? `[${address}]` : address;
  try {
    const response = await fetch(`http://${host}:${port}/statistics`, {
      signal: AbortSignal.timeout(5000),
    });
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    return snapshot.parse(await response.json());
  } catch (error) {
    const cause = error instanceof Error && error.cause !== undefined ? error.cause : error;
    throw new CliError(
      ExitCode.failed,
      `no statistics from ${host}:${port}: ${cause instanceof z.ZodError ? 'this is no nvmeof target' : messageOf(cause)}`,
      { remedy: `start the target with: nvmeof target … --metrics ${host}:${port}` },
    );
  }
}
