/**
 * The goals: each a work of ours beside what it is compared with. One reactor on each side, target on the first core and host on
 * the second, where nothing else is said.
 */
import { localFio } from './fio.ts';
import { budget, type Subject } from './figures.ts';
import { NAMESPACE_BYTES, ours } from './ours.ts';
import { attachedByNbd, buildEngine, fioEngine, nbdkitMemory } from './other-programs.ts';
import type { Goal, Parts, Row } from './parts.ts';
import { RoundTripProgram } from './programs.ts';
import {
  blockingRoundTrip,
  idleQueues,
  javascript,
  manyQueues,
  slowAmongGreedy,
} from './scripts.ts';

/** What a stock kernel grants without privileges. */
const STOCK_BUFFER = 212_992;
const KIB_128 = 128 << 10;

const iops = (atLeast: number): Goal => ({ metric: 'iops', atLeast });
const bandwidth = (atLeast: number): Goal => ({ metric: 'bandwidth', atLeast });
const latency = (atMost: number): Goal => ({ metric: 'p50', atMost });

/** The memory namespace beside the bare packets. */
function besideTheFloor(parts: Parts): Row[] {
  const { memory } = parts;
  return [
    ...[32, 128].map((depth) => ({
      id: `read-4k-${depth}`,
      title: `4 KiB random read, memory, depth ${depth}`,
      subject: parts.ours('nvmeof', memory, { depth }),
      reference: parts.floor('read', depth),
      goal: iops(0.9),
    })),
    {
      id: 'read-4k-1',
      title: '4 KiB random read, memory, depth 1, median latency',
      subject: parts.ours('nvmeof', memory, { depth: 1 }),
      reference: parts.floor('lowDepthRead', 1),
      goal: latency(1.15),
    },
    {
      id: 'write-4k-128',
      title: '4 KiB random write by RDMA READ, depth 128',
      subject: parts.ours('nvmeof', memory, { depth: 128, rw: 'randwrite' }),
      reference: parts.floor('write', 128),
      goal: iops(0.92),
    },
    {
      id: 'write-4k-1',
      title: '4 KiB random write in the capsule, depth 1, median latency',
      subject: parts.ours('nvmeof', memory, { depth: 1, rw: 'randwrite' }),
      reference: parts.floor('capsule', 1),
      goal: latency(1.2),
    },
    ...(['read', 'write'] as const).map((rw) => ({
      id: `${rw}-128k-32`,
      title: `128 KiB ${rw}, depth 32`,
      subject: parts.ours('nvmeof', memory, { depth: 32, bytes: KIB_128, rw: `rand${rw}` }),
      reference: parts.floor(rw, 32, KIB_128),
      goal: bandwidth(0.9),
    })),
  ];
}

/** Other backings. */
function backings(parts: Parts, memoryRead: Subject): Row[] {
  const { file } = parts;
  return [
    {
      id: 'null-4k-128',
      title: 'null namespace beside memory, 4 KiB random read, depth 128',
      subject: parts.ours('null', parts.exporting(`null:${NAMESPACE_BYTES},bs=4096`), {
        depth: 128,
      }),
      reference: memoryRead,
      goal: iops(1.1),
    },
    {
      id: 'file-cached-4k-128',
      title: 'page-cached file, 4 KiB random read, depth 128',
      subject: parts.ours('file', parts.cachedFile, { depth: 128 }),
      reference: parts.floor('cachedFile', 128),
      goal: iops(0.9),
    },
    {
      id: 'file-direct-4k-32',
      title: 'file by O_DIRECT beside fio on it, 4 KiB random read, depth 32',
      subject: parts.ours('file', parts.exporting(`${file},bs=4096,cache=direct,shared`), {
        depth: 32,
      }),
      reference: localFio(file, 32, parts.targetCore),
      goal: iops(0.95),
    },
  ];
}

/** Other networks and other users. */
function circumstances(parts: Parts, memoryRead: Subject): Row[] {
  const buffer = ['--socket-buffer', `${STOCK_BUFFER}`];
  const mtu = ['--mtu', '1024'];
  return [
    {
      id: 'javascript-4k-128',
      title: 'JavaScript library beside nvmeof bench, 4 KiB random read, depth 128',
      subject: javascript(parts, 128),
      reference: memoryRead,
      goal: iops(0.4),
    },
    {
      id: 'mtu-1024',
      title: 'path MTU 1024 beside 4096, 4 KiB random read, depth 128',
      subject: parts.ours('MTU 1024', parts.memoryWith(...mtu), { depth: 128, options: mtu }),
      reference: memoryRead,
      goal: iops(0.7),
    },
    {
      id: 'stock-buffers',
      title: 'socket buffers of a stock kernel beside 4 MiB, 4 KiB random read, depth 128',
      subject: parts.ours('stock', parts.memoryWith(...buffer), { depth: 128, options: buffer }),
      reference: memoryRead,
      goal: iops(0.7),
    },
    {
      id: 'fairness',
      title: 'a host at depth 1 among seven at depth 128, its median latency beside its lone one',
      subject: slowAmongGreedy(parts, 7),
      reference: slowAmongGreedy(parts, 0),
      goal: latency(4),
    },
  ];
}

const ACTIVE = 64;
/** A thousand at the usual 128 entries would need eleven reactors: each has 24,576 send queue entries. */
const MANY = 1000;
const MANY_DEPTH = 8;
const KIB_PER_QUEUE = 300;

/** Many queues, most of them silent. */
function idleness(parts: Parts): Row[] {
  const memory = { memoryPerQueue: KIB_PER_QUEUE << 10 };
  const allowed = budget('allowed', memory);
  const withinBudget: Goal = { metric: 'memoryPerQueue', atMost: 1 };
  return [
    {
      id: 'idle-cpu',
      title: '64 idle queues, Keep Alive every 5 s, CPU time of the target',
      subject: idleQueues(parts, ACTIVE),
      reference: budget('allowed', { cpuShare: 0.01 }),
      goal: { metric: 'cpuShare', atMost: 1 },
      once: true,
    },
    {
      id: 'idle-first',
      title: 'first command after idle, median latency, beside a UDP round trip after idle',
      subject: idleQueues(parts, ACTIVE, 1),
      reference: blockingRoundTrip(new RoundTripProgram(parts.floorProgram.folder)),
      goal: latency(1.5),
    },
    {
      id: 'queues-1000',
      title: `${MANY} queues connected, ${ACTIVE} of them active, beside ${ACTIVE} alone`,
      subject: manyQueues(parts, ACTIVE, MANY, MANY_DEPTH),
      reference: manyQueues(parts, ACTIVE, ACTIVE, MANY_DEPTH),
      goal: iops(0.8),
    },
    {
      id: 'queues-1000-memory',
      title: `memory of an idle queue, ${MANY} of depth ${MANY_DEPTH}`,
      subject: manyQueues(parts, ACTIVE, MANY, MANY_DEPTH),
      reference: allowed,
      goal: withinBudget,
      once: true,
    },
    {
      id: 'queues-128-memory',
      title: 'memory of an idle queue, 64 of depth 128',
      subject: manyQueues(parts, 1, 65, 128),
      reference: allowed,
      goal: withinBudget,
      once: true,
    },
  ];
}

/** Both cores for the target, and for the host. */
function severalReactors(parts: Parts): Row {
  const cores = [parts.targetCore, parts.hostCore];
  const load = { depth: ACTIVE, queues: 2 * cores.length, cores };
  const target = (count: number): Subject =>
    ours(
      count === 1 ? 'one reactor' : 'two reactors',
      parts.targets,
      { ...parts.memory, cores: cores.slice(0, count) },
      load,
    );
  return {
    id: 'reactors-2',
    title: 'two reactors beside one, 4 KiB random read, I/Os to a CPU second of the target',
    subject: target(2),
    reference: target(1),
    goal: { metric: 'iopsPerCpu', atLeast: 0.9 },
  };
}

/** What stands between the namespace and programs of others. */
function otherPrograms(parts: Parts): Row[] {
  return [
    {
      id: 'nbd-4k-32',
      title: "fio's NBD engine on attach beside nbdkit's memory, 4 KiB random read, depth 32",
      subject: attachedByNbd(parts, 32),
      reference: nbdkitMemory(parts, 32),
      goal: iops(1),
    },
    {
      id: 'fio-4k-32',
      title: 'fio with our engine beside nvmeof bench, 4 KiB random read, depth 32',
      subject: fioEngine(parts),
      reference: parts.ours('memory', parts.memory, { depth: 32 }),
      goal: iops(0.85),
      prepare: buildEngine,
    },
  ];
}

export function rows(parts: Parts): Row[] {
  const memoryRead = parts.ours('memory', parts.memory, { depth: 128 });
  return [
    ...besideTheFloor(parts),
    ...backings(parts, memoryRead),
    ...circumstances(parts, memoryRead),
    ...idleness(parts),
    ...otherPrograms(parts),
    severalReactors(parts),
  ];
}
