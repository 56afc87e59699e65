/** Rates between two snapshots of a target, metrics of one, and the HTTP port that serves both. */
import { expect } from 'chai';
import { metricsText } from '../../../tools/cli/statistics/metrics.ts';
import { rates } from '../../../tools/cli/statistics/rates.ts';
import { StatisticsServer } from '../../../tools/cli/statistics/server.ts';
import {
  explainTable,
  queuePairTable,
  queueTable,
  ratesJson,
  reactorTable,
  transportLines,
} from '../../../tools/cli/statistics/tables.ts';
import type { QueueReport, ReactorReport, TargetStatistics } from '../../../target/index.ts';

const queue = (changes: Partial<QueueReport> = {}): QueueReport => ({
  ...{ id: 7, subsystemNqn: 'nqn.2024-01.com.example:disks', cntlid: 3, qid: 1, reactor: 0 },
  ...{ hostNqn: 'nqn.2024-01.com.example:host "a"', hostId: 'x', peer: '192.0.2.9', depth: 128 },
  ...{ reads: 1000, writes: 10, others: 1, errors: 2, bytesRead: 4_096_000, bytesWritten: 40_960 },
  latency: [
    [1024, 900],
    [65_536, 113],
  ],
  ...changes,
});

const statistics = (changes: Partial<TargetStatistics> = {}): TargetStatistics => ({
  atMs: 10_000,
  queues: [queue()],
  reactors: [
    {
      ...{ index: 0, core: 2, busyNs: 3e9, idleNs: 1e9, cpuNs: 35e8 },
      ...{ ports: ['192.0.2.7:4420'], ioQueues: 1, adminQueues: 2, load: 0.75 },
    },
  ],
  counters: {
    'soft.rx.packets': 5000,
    'soft.rx.bad_icrc': 4,
    'live.queuePairs': 2,
    'reactor.0.sleeps': 30,
    'reactor.0.busyNs': 3e9,
    'target.bufferWaits': 6,
  },
  ...changes,
});

describe('rates of a target', () => {
  const later = statistics({
    atMs: 12_000,
    queues: [
      queue({
        ...{ reads: 3000, bytesRead: 12_288_000, errors: 2 },
        latency: [
          [1024, 2800],
          [65_536, 211],
          [1_048_576, 2],
        ],
      }),
    ],
    counters: { 'soft.rx.packets': 9000, 'reactor.0.sleeps': 30 },
  });

  it('are those of the interval, per second', () => {
    const result = rates(statistics(), later);
    expect(result.seconds).to.equal(2);
    const [first] = result.queues;
    expect(first).to.include({ reads: 1000, writes: 0, errors: 0, bytesRead: 4_096_000 });
    expect(result.perSecond('soft.rx.packets')).to.equal(2000);
    expect(result.reactors[0]).to.include({ busy: 0, sleeps: 0, ioQueues: 1, adminQueues: 2 });
    expect(first?.core).to.equal(2);
  });

  it('take latencies of the interval alone', () => {
    // 1900 commands below 1024 ns, 98 below 65,536, 2 below 1,048,576
    const [first] = rates(statistics(), later).queues;
    expect(first).to.include({ p50: 1024, p99: 65_536 });
    const [idle] = rates(later, { ...later, atMs: 13_000 }).queues;
    expect(idle).to.include({ p50: undefined, p99: undefined, reads: 0 });
  });

  it('count a queue that is new from zero', () => {
    const [first] = rates(statistics({ queues: [] }), later).queues;
    expect(first?.reads).to.equal(1500);
  });
});

describe('tables of a target', () => {
  const placed = (index: number, core: number, ports: string[]): ReactorReport => ({
    ...{ index, core, ports, busyNs: 0, idleNs: 0, cpuNs: 0 },
    ...{ ioQueues: index, adminQueues: 7, load: 0.25 * index },
  });
  const cells = (table: string): string[][] =>
    table.split('\n').flatMap((line) =>
      line.startsWith('│')
        ? [
            line
              .split('│')
              .slice(1, -1)
              .map((cell) => cell.trim()),
          ]
        : [],
    );

  it('show where the queues are', () => {
    const [one, two] = ['192.0.2.7:4420', '192.0.2.8:4420'];
    const before = statistics({ reactors: [placed(0, 2, [one]), placed(1, -1, [one, two])] });
    const now = { ...before, atMs: before.atMs + 2000 };
    const rows = cells(reactorTable(rates(before, now)));
    expect(rows[0]?.slice(0, 5)).to.deep.equal([
      ...['reactor', 'core', 'ports', 'admin queues', 'I/O queues'],
    ]);
    const shown = rows.filter(([first]) => /^\d$/.test(first ?? ''));
    expect(shown.map((row) => row.slice(0, 5))).to.deep.equal([
      ['0', '2', one, '7', '0'],
      ['1', '-', 'all', '7', '1'],
    ]);
    expect(shown[1]?.[7]).to.equal('25 %');
    const queues = cells(queueTable(rates(before, now).queues));
    expect(queues[0]?.slice(1, 5)).to.deep.equal(['controller', 'queue', 'reactor', 'core']);
    expect(queues.find(([host]) => host?.includes('example:host'))?.slice(1, 5)).to.deep.equal([
      ...['3', '1', '0', '2'],
    ]);
  });
});

describe('what explains the speed of a target', () => {
  const pair = (factor: number): NonNullable<QueueReport['transport']> => ({
    ...{ packetsIn: 100 * factor, packetsOut: 200 * factor, acksIn: 10 * factor, acksOut: factor },
    ...{ retransmitsTimeout: 2 * factor, retransmitsNak: 4 * factor },
    ...{ retransmitsImplied: 6 * factor, retransmitsNotReady: 8 * factor },
  });
  const counters = (factor: number): TargetStatistics['counters'] => ({
    ...{ 'reactor.0.iterations': 1000 * factor, 'reactor.0.idleIterations': 250 * factor },
    ...{ 'reactor.0.soft.rx.packets': 600 * factor, 'reactor.0.soft.tx.packets': 900 * factor },
    ...{
      'reactor.0.socket.receive_messages': 60 * factor,
      'reactor.0.soft.tx.trains': 300 * factor,
    },
    ...{
      'reactor.0.soft.requester.acks': 40 * factor,
      'reactor.0.soft.responder.acks': 20 * factor,
    },
    ...{ 'reactor.0.soft.requester.retransmits': 16 * factor },
    ...{ 'reactor.0.soft.rx.wrong_reactor': 14 * factor, 'soft.rx.wrong_reactor': 14 * factor },
    ...{ 'reactor.0.ioUringCalls': 10 * factor, 'reactor.0.ioUringSubmissions': 120 * factor },
    ...{ 'reactor.0.live.targetBuffers': 3, 'reactor.0.live.targetBufferBytes': 3 << 20 },
    ...{ 'reactor.0.target.buffer_bytes': 64 << 20, 'reactor.0.target.bufferWaits': 18 * factor },
  });
  const at = (factor: number): TargetStatistics =>
    statistics({
      atMs: factor * 2000,
      queues: [queue({ transport: pair(factor) }), queue({ id: 8, qid: 2, latency: [[2048, 1]] })],
      counters: counters(factor),
    });

  it('is counted by reactor', () => {
    const result = rates(at(1), at(2));
    expect(result.reactors[0]).to.include({
      ...{ packetsIn: 300, packetsOut: 450, packetsPerMessage: 10, packetsPerTrain: 3 },
      ...{ acksIn: 20, acksOut: 10, retransmissions: 8, wrongReactor: 7 },
      ...{ ioUringCalls: 5, submissionsPerCall: 12, iterations: 500, idleIterations: 125 },
      ...{ buffers: 3, bufferBytes: 3 << 20, bufferBytesMax: 64 << 20, bufferWaits: 9 },
    });
    const table = explainTable(result);
    for (const cell of ['25 %', '10.0', '3.0 / 64.0', '12.0', '450']) {
      expect(table).to.include(` ${cell} `);
    }
    const idle = rates(at(2), { ...at(2), atMs: 8000 }).reactors[0];
    expect(idle).to.include({ packetsPerTrain: undefined, submissionsPerCall: undefined });
  });

  it('has latencies by reactor, of all its queues', () => {
    const before = statistics({ queues: [] });
    const queues = [
      queue({ latency: [[1024, 98]] }),
      queue({ id: 8, latency: [[4096, 2]] }),
      queue({ id: 9, reactor: 1, latency: [[65_536, 50]] }),
    ];
    const [reactor] = rates(before, statistics({ atMs: 11_000, queues })).reactors;
    expect(reactor).to.include({ p50: 1024, p99: 4096 });
  });

  it('is counted by queue pair, where the device does', () => {
    const { queues } = rates(at(1), at(2));
    expect(queues[0]?.transport).to.deep.equal(pair(0.5));
    expect(queues[1]?.transport).to.equal(undefined);
    const table = queuePairTable(queues);
    expect(table)
      .to.include('again: timeout')
      .and.match(/ 50 │ +100 │ +5 │ +1 │/);
    expect(queuePairTable(queues.slice(1))).to.equal('');
  });

  it('says what landed on the wrong core, also when nothing did', () => {
    expect(transportLines(rates(at(1), at(2)))[0]).to.match(/, 7 on the wrong core$/);
    expect(transportLines(rates(at(1), at(1)))[0]).to.match(/, 0 on the wrong core$/);
    expect(ratesJson(rates(at(1), at(2)))).to.deep.include({ wrongReactor: 7 });
  });

  it('is in the metrics, with reactor and cause as labels', async () => {
    const lines = (await metricsText(at(1))).split('\n');
    for (const line of [
      'nvmeof_reactor_io_uring_calls_total{reactor="0"} 10',
      'nvmeof_reactor_io_uring_submissions_total{reactor="0"} 120',
      'nvmeof_reactor_soft_rx_wrong_reactor_total{reactor="0"} 14',
      'nvmeof_soft_rx_wrong_reactor_total 14',
      'nvmeof_reactor_idle_iterations_total{reactor="0"} 250',
      'nvmeof_reactor_live_target_buffers{reactor="0"} 3',
      '# TYPE nvmeof_reactor_live_target_buffer_bytes gauge',
      '# TYPE nvmeof_reactor_target_buffer_bytes gauge',
      'nvmeof_reactor_target_buffer_waits_total{reactor="0"} 18',
      'nvmeof_reactor_command_service_seconds_count{reactor="0",core="2"} 1014',
    ]) {
      expect(lines).to.include(line);
    }
    const text = lines.join('\n');
    expect(text).to.match(/nvmeof_queue_packets_total\{.*queue="1".*direction="out"\} 200/);
    expect(text).to.match(/nvmeof_queue_acks_total\{.*direction="in"\} 10/);
    expect(text).to.match(/nvmeof_queue_retransmissions_total\{.*cause="not_ready"\} 8/);
    expect(text).not.to.match(/nvmeof_queue_packets_total\{.*queue="2"/);
  });
});

describe('metrics of a target', () => {
  it('have labels, types and every counter', async () => {
    const text = await metricsText(statistics());
    const lines = text.split('\n');
    expect(lines).to.include('# TYPE nvmeof_commands_total counter');
    expect(lines.find((line) => line.startsWith('nvmeof_commands_total{'))).to.equal(
      'nvmeof_commands_total{subsystem="nqn.2024-01.com.example:disks",' +
        'host="nqn.2024-01.com.example:host \\"a\\"",controller="3",queue="1",reactor="0",operation="read"} 1000',
    );
    expect(lines).to.include('nvmeof_soft_rx_bad_icrc_total 4');
    expect(lines).to.include('nvmeof_target_buffer_waits_total 6');
    expect(lines).to.include('nvmeof_live_queue_pairs 2');
    expect(lines).to.include('nvmeof_reactor_sleeps_total{reactor="0"} 30');
    expect(lines).to.include('nvmeof_reactor_busy_seconds_total{reactor="0",core="2"} 3');
    expect(text).not.to.include('busy_ns');
    expect(lines).to.include('nvmeof_reactor_io_queues{reactor="0",core="2"} 1');
    expect(lines).to.include('nvmeof_reactor_admin_queues{reactor="0",core="2"} 2');
    expect(lines).to.include('nvmeof_reactor_load{reactor="0",core="2"} 0.75');
    expect(lines).to.include(
      'nvmeof_reactor_port_info{reactor="0",core="2",port="192.0.2.7:4420"} 1',
    );
    expect(text).to.match(/nvmeof_queue_info\{.*queue="1",reactor="0",core="2"\} 1/);
  });

  it('have a histogram whose buckets only grow', async () => {
    const text = await metricsText(statistics());
    const buckets = [
      ...text.matchAll(/nvmeof_command_service_seconds_bucket\{.*le="(.+?)"\} (\d+)/g),
    ].map(
      ([, bound, count]) => [Number(bound === '+Inf' ? Infinity : bound), Number(count)] as const,
    );
    expect(buckets.length).to.be.greaterThan(20);
    buckets.slice(1).forEach(([bound, count], index) => {
      expect(bound).to.be.greaterThan(buckets[index]?.[0] ?? NaN);
      expect(count).to.be.at.least(buckets[index]?.[1] ?? NaN);
    });
    expect(buckets.find(([bound]) => bound === 4e-6)?.[1]).to.equal(900);
    expect(buckets.at(-1)).to.deep.equal([Infinity, 1013]);
    expect(text).to.match(/service_seconds_count\{.*\} 1013/);
  });
});

describe('the statistics port', () => {
  const port = 19_420 + (process.pid % 1000);
  const at = (path: string): string => `http://127.0.0.1:${port}${path}`;
  let server: StatisticsServer;
  let answer: () => TargetStatistics = statistics;

  before(async () => {
    server = await StatisticsServer.listen({ address: '127.0.0.1', port }, () => answer());
  });
  after(() => server.close());

  it('serves metrics and JSON, and says what there is', async () => {
    const metrics = await fetch(at('/metrics'));
    expect(metrics.headers.get('content-type')).to.match(/^text\/plain; version=0\.0\.4/);
    expect(await metrics.text()).to.include('nvmeof_commands_total');
    const json = await fetch(at('/statistics?x=1'));
    expect(await json.json()).to.deep.equal(statistics());
    const other = await fetch(at('/'));
    expect(other.status).to.equal(404);
    expect(await other.text()).to.equal('There is /metrics and /statistics.\n');
    expect((await fetch(at('/metrics'), { method: 'POST' })).status).to.equal(405);
  });

  it('answers an error when there is none to be had', async () => {
    answer = () => {
      throw new Error('stopped');
    };
    const response = await fetch(at('/metrics'));
    answer = statistics;
    expect(response.status).to.equal(500);
    expect(await response.text()).to.equal('stopped\n');
  });

  it('says which address is taken', async () => {
    let message = '';
    try {
      await StatisticsServer.listen({ address: '127.0.0.1', port }, statistics);
    } catch (error) {
      message = (error as Error).message;
    }
    expect(message).to.match(
      new RegExp(`^cannot serve metrics at 127.0.0.1:${port}: .*EADDRINUSE`),
    );
  });
});
