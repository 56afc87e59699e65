/** The rates of an interval as `nvmeof stats` shows them: tables for people, one object for programs. */
import { microseconds, plainTable } from '../tables.ts';
import { byHost } from './by-host.ts';
import { ratio, type QueueRates, type Rated, type Rates } from './rates.ts';

const whole = (value: number): string => Math.round(value).toLocaleString('en-US');
const megabytes = (value: number): string => (value / 1e6).toFixed(1);
const percent = (value: number): string => `${(value * 100).toFixed(0)} %`;
const latency = (ns: number | undefined): string => (ns === undefined ? '-' : microseconds(ns));
const coreText = (core: number): string => (core < 0 ? '-' : String(core));
const each = (value: number | undefined): string => value?.toFixed(1) ?? '-';

function sum(all: readonly QueueRates[], key: keyof Rated): number {
  return all.reduce((total, one) => total + one[key], 0);
}

export function queueTable(all: readonly QueueRates[]): string {
  return plainTable(
    ['host', 'controller', 'queue', 'reactor', 'core', 'read/s', 'write/s'].concat([
      'read MB/s',
      'write MB/s',
      'other/s',
      'error/s',
      'p50',
      'p99',
    ]),
    all.map((rate) => [
      rate.queue.hostNqn,
      ...[rate.queue.cntlid, rate.queue.qid, rate.queue.reactor].map(String),
      coreText(rate.core),
      ...[whole(rate.reads), whole(rate.writes)],
      ...[megabytes(rate.bytesRead), megabytes(rate.bytesWritten)],
      ...[whole(rate.others), whole(rate.errors), latency(rate.p50), latency(rate.p99)],
    ]),
  );
}

/** Where the queues are, and what they make of the cores. */
export function reactorTable({ reactors }: Rates): string {
  const everywhere = new Set(reactors.flatMap(({ ports }) => ports)).size;
  const portsText = (ports: readonly string[]): string =>
    ports.length === everywhere && reactors.length > 1 ? 'all' : ports.join(' ');
  return plainTable(
    ['reactor', 'core', 'ports', 'admin queues', 'I/O queues', 'busy', 'CPU', 'load'].concat([
      ...['sleeps/s', 'polls/s'],
    ]),
    reactors.map((reactor) => [
      ...[String(reactor.index), coreText(reactor.core), portsText(reactor.ports)],
      ...[String(reactor.adminQueues), String(reactor.ioQueues)],
      ...[percent(reactor.busy), percent(reactor.cpu), percent(reactor.load)],
      ...[whole(reactor.sleeps), whole(reactor.iterations)],
    ]),
  );
}

/** What explains the speed of each reactor: batches, and what keeps it from them. */
export function explainTable({ reactors }: Rates): string {
  const mebibytes = (bytes: number): string => (bytes / 2 ** 20).toFixed(1);
  return plainTable(
    [
      'reactor',
      'idle polls',
      'packets/s in',
      'a message',
      'out',
      'a train',
      'ACKs in',
      'out',
    ].concat(
      ['sent again', 'wrong core', 'io_uring calls', 'each', 'buffers', 'MiB of', 'waits/s'],
      ['p50', 'p99'],
    ),
    reactors.map((one) => [
      ...[String(one.index), percent(one.idleIterations / Math.max(one.iterations, 1))],
      ...[whole(one.packetsIn), each(one.packetsPerMessage)],
      ...[whole(one.packetsOut), each(one.packetsPerTrain)],
      ...[whole(one.acksIn), whole(one.acksOut)],
      ...[whole(one.retransmissions), whole(one.wrongReactor)],
      ...[whole(one.ioUringCalls), each(one.submissionsPerCall), whole(one.buffers)],
      `${mebibytes(one.bufferBytes)} / ${mebibytes(one.bufferBytesMax)}`,
      ...[whole(one.bufferWaits), latency(one.p50), latency(one.p99)],
    ]),
  );
}

/** Of each queue pair whose device tells; empty: there is none. */
export function queuePairTable(all: readonly QueueRates[]): string {
  const rows = all.flatMap(({ queue, transport }) => {
    if (!transport) return [];
    const { packetsIn, packetsOut, acksIn, acksOut } = transport;
    const again = [
      ...[transport.retransmitsTimeout, transport.retransmitsNak],
      ...[transport.retransmitsImplied, transport.retransmitsNotReady],
    ];
    return [
      [
        queue.hostNqn,
        ...[queue.cntlid, queue.qid].map(String),
        ...[packetsIn, packetsOut, acksIn, acksOut, ...again].map(whole),
      ],
    ];
  });
  if (rows.length === 0) return '';
  return plainTable(
    ['host', 'controller', 'queue', 'packets/s in', 'out', 'ACKs in', 'out'].concat([
      ...['again: timeout', 'NAK', 'implied', 'not ready'],
    ]),
    rows,
  );
}

/** The network in one line, the rest of what slows things down in another when there is any. */
export function transportLines({ perSecond: rate }: Rates): string[] {
  const [received, messages] = [rate('soft.rx.packets'), rate('socket.receive_messages')];
  const wrong = rate('soft.rx.wrong_reactor');
  const [sent, trains] = [rate('soft.tx.packets'), rate('soft.tx.trains')];
  const acks = rate('soft.responder.acks');
  const troubles = [
    ['retransmissions', rate('soft.requester.retransmits')],
    ['by timeout', rate('soft.requester.retransmits_timeout')],
    ['by NAK', rate('soft.requester.retransmits_nak')],
    ['by implied NAK', rate('soft.requester.retransmits_implied')],
    ['as receivers were not ready', rate('soft.requester.retransmits_not_ready')],
    ['bad ICRC', rate('soft.rx.bad_icrc')],
    ['dropped, socket full', rate('socket.dropped_full')],
    ['waits for buffers', rate('target.bufferWaits')],
  ] as const;
  const noticed = troubles.filter(([, value]) => value > 0);
  return [
    `packets/s: ${whole(received)} in (${each(ratio(received, messages))} a message), ` +
      `${whole(sent)} out (${each(ratio(sent, trains))} a train), ${whole(acks)} ACKs, ${whole(wrong)} on the wrong core`,
    ...(noticed.length === 0
      ? []
      : [`per second: ${noticed.map(([name, value]) => `${whole(value)} ${name}`).join(', ')}`]),
  ];
}

/** The queues of a host in a subsystem as one. */
export function hostTable(all: readonly QueueRates[]): string {
  const slowest = (values: readonly (number | undefined)[]): number | undefined => {
    const known = values.filter((value) => value !== undefined);
    return known.length === 0 ? undefined : Math.max(...known);
  };
  return plainTable(
    ['host', 'queues', 'read/s', 'write/s', 'read MB/s', 'write MB/s', 'other/s', 'error/s'].concat(
      ['p50', 'p99'],
    ),
    byHost(all, ({ queue }) => queue).map((members) => [
      members[0]?.queue.hostNqn ?? '',
      String(members.length),
      ...[whole(sum(members, 'reads')), whole(sum(members, 'writes'))],
      megabytes(sum(members, 'bytesRead')),
      megabytes(sum(members, 'bytesWritten')),
      ...[whole(sum(members, 'others')), whole(sum(members, 'errors'))],
      latency(slowest(members.map(({ p50 }) => p50))),
      latency(slowest(members.map(({ p99 }) => p99))),
    ]),
  );
}

export function ratesJson(result: Rates): unknown {
  const { seconds: length, queues, reactors, perSecond } = result;
  return {
    seconds: length,
    queues: queues.map(({ queue, ...rest }) => ({
      ...{ hostNqn: queue.hostNqn, subsystemNqn: queue.subsystemNqn, cntlid: queue.cntlid },
      ...{ qid: queue.qid, reactor: queue.reactor, ...rest },
    })),
    reactors,
    packetsIn: perSecond('soft.rx.packets'),
    packetsOut: perSecond('soft.tx.packets'),
    retransmissions: perSecond('soft.requester.retransmits'),
    wrongReactor: perSecond('soft.rx.wrong_reactor'),
  };
}
