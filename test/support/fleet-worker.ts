/**
 * Many hosts in one process: each has a host NQN and a subsystem of one path of its own, an admin queue and an I/O queue, and reads a
 * block now and then. Tells its parent when all are live (`live`), when none is (`lost`), and how they came back.
 *   fleet-worker.ts ADDRESS NQN HOSTS RECONNECT_DELAY_MS SOURCES
 * SOURCES: how many addresses, each a device, they leave from.
 */
import { connectPaths } from '../../initiator/index.ts';
import type { MultipathSubsystem } from '../../initiator/index.ts';
import { acquireRuntime } from '../../native/shared-runtime.ts';
import type { FleetReport } from './fleet.ts';
import { loopbackAddress } from './processes.ts';

const [address = '', nqn = '', hostCount, delay, sourceCount] = process.argv.slice(2);
const HOSTS = Number(hostCount);
const SOURCES = Number(sourceCount);
const READ_EVERY_MS = 200;
const CONNECTING_AT_A_TIME = 16;
/** All hosts share this process and its processor: what is patient enough for one is not for hundreds. */
const PATIENT = { keepAliveMs: 60_000, connectTimeoutMs: 30_000 } as const;

const lease = acquireRuntime();
const { door } = lease.runtime;
const now = (): number => performance.timeOrigin + performance.now();

const live = new Set<number>();
let report: FleetReport = { requestsAt: [], liveAt: [], readAt: [], counters: {}, reasons: {} };
const awaitingRead = new Set<number>();
let stopped = false;

/** Every CM REQ is a call of this. */
const connect = door.connect.bind(door);
door.connect = (...args) => {
  report.requestsAt.push(now());
  return connect(...args);
};

function count(reason: string): void {
  const what = reason.replaceAll(/\d+/g, 'N');
  report.reasons[what] = (report.reasons[what] ?? 0) + 1;
}

function tell(kind: 'live' | 'lost'): void {
  report.counters = door.counters();
  process.send?.({ kind, report });
}

function follow(subsystem: MultipathSubsystem, index: number): void {
  subsystem.on('warning', ({ message }) => {
    count(message);
  });
  subsystem.on('pathState', ({ from, to, reason }) => {
    if (to !== 'live') count(reason);
    if (from === 'live') {
      if (live.size === HOSTS)
        report = { requestsAt: [], liveAt: [], readAt: [], counters: {}, reasons: {} };
      live.delete(index);
      if (live.size === 0) tell('lost');
    }
    if (to !== 'live') return;
    live.add(index);
    awaitingRead.add(index);
    report.liveAt.push(now());
  });
}

/** Ends when the fleet stops; a read that fails ends the process. */
async function readNowAndThen(subsystem: MultipathSubsystem, index: number): Promise<void> {
  const namespace = subsystem.namespace(1);
  while (!stopped) {
    await namespace.read(index % 64, 1);
    if (live.has(index) && awaitingRead.delete(index)) {
      report.readAt.push(now());
      if (awaitingRead.size === 0 && live.size === HOSTS) tell('live');
    }
    await new Promise((resolve) => setTimeout(resolve, READ_EVERY_MS));
  }
}

const sources = Array.from({ length: SOURCES }, loopbackAddress);
const subsystems: MultipathSubsystem[] = [];
const reading: Promise<void>[] = [];
let next = 0;

async function connectSome(): Promise<void> {
  while (next < HOSTS) {
    const index = next++;
    const subsystem = await connectPaths({
      nqn,
      hostNqn: `nqn.2026-11.io.nvmeof:host-${index}`,
      paths: [{ address, sourceAddress: sources[index % SOURCES] ?? '' }],
      queues: 1,
      depth: 4,
      reconnectDelayMs: Number(delay),
      ...PATIENT,
    });
    subsystems.push(subsystem);
    follow(subsystem, index);
    live.add(index);
    awaitingRead.add(index);
    report.liveAt.push(now());
    reading.push(readNowAndThen(subsystem, index));
  }
}

await Promise.all(Array.from({ length: CONNECTING_AT_A_TIME }, connectSome));
process.once('message', () => {
  stopped = true;
  void Promise.all(reading)
    .then(() => Promise.all(subsystems.map((subsystem) => subsystem.disconnect())))
    .then(() => {
      lease.release();
      process.disconnect();
    });
});
