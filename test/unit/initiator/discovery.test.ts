/** Discovery logs, honest and hostile. */
import { expect } from 'chai';
import { ConnectError, ProtocolError } from '../../../initiator/errors.ts';
import { discoverIn, readDiscoveryLog } from '../../../initiator/discovery.ts';
import type { LogReader } from '../../../initiator/discovery.ts';
import { DISCOVERY_NQN } from '../../../native/wire/fabrics.ts';
import { ConnectCommand } from '../../../native/wire/fabrics.ts';
import { DiscoveryLogEntry, DiscoveryLogHeader } from '../../../native/wire/logs.ts';
import { NQN } from './fake-controller.ts';
import { makeBench, rejection } from './support.ts';
import type { Bench } from './support.ts';

const ENTRY = {
  trtype: 1,
  adrfam: 1,
  subtype: 2,
  portid: 1,
  cntlid: 0xffff,
  asqsz: 32,
  trsvcid: '4420',
  subnqn: NQN,
  traddr: '192.0.2.7',
  tsasRdmaQptype: 1,
  tsasRdmaPrtype: 4,
  tsasRdmaCms: 1,
};

function log(
  entries: readonly Partial<typeof ENTRY>[],
  header: Partial<DiscoveryLogHeader> = {},
): Uint8Array {
  const fields = { genctr: 7n, numrec: BigInt(entries.length), ...header };
  const parts = [
    DiscoveryLogHeader.encode(fields),
    ...entries.map((entry) => DiscoveryLogEntry.encode({ ...ENTRY, ...entry })),
  ];
  return Uint8Array.from(Buffer.concat(parts));
}

/** Reads from a buffer; counts. */
class Reader implements LogReader {
  reads = 0;
  page: Uint8Array;
  onRead: () => void = () => undefined;
  constructor(page: Uint8Array) {
    this.page = page;
  }
  getLogPage({ bytes, offset = 0 }: { bytes: number; offset?: number }): Promise<Uint8Array> {
    this.reads += 1;
    this.onRead();
    const data = new Uint8Array(bytes);
    data.set(this.page.subarray(offset, offset + bytes));
    return Promise.resolve(data);
  }
}

function discoveryBench(): Bench {
  const bench = makeBench();
  bench.peer.controller = {
    ...bench.peer.controller,
    cntrltype: 2,
    subnqn: DISCOVERY_NQN,
    kas: 0,
    nn: 0,
    mnan: 0,
    sqes: 0,
    cqes: 0,
    ioccsz: 0,
    iorcsz: 0,
    oaesNamespaceAttribute: false,
  };
  return bench;
}

describe('discovery', () => {
  it('lists paths and leaves nothing connected, fifty times', async () => {
    const bench = discoveryBench();
    bench.peer.logs.set(
      0x70,
      log([
        {},
        { adrfam: 2, traddr: 'FE80::1', trsvcid: '4421' },
        { subtype: 3, subnqn: DISCOVERY_NQN },
      ]),
    );
    for (let round = 0; round < 50; round += 1) {
      const { generation, paths } = await discoverIn(bench.environment, { address: '127.0.0.1' });
      expect(generation).to.equal(7n);
      expect(
        paths.map(({ nqn, address, service, kind }) => [nqn, address, service, kind]),
      ).to.deep.equal([
        [NQN, '192.0.2.7', '4420', 'subsystem'],
        [NQN, 'fe80::1', '4421', 'subsystem'],
        [DISCOVERY_NQN, '192.0.2.7', '4420', 'current'],
      ]);
      expect(paths[0]).to.include({
        transport: 'rdma',
        rdmaProvider: 'rocev2',
        problem: undefined,
      });
    }
    expect(bench.door.queues.size).to.equal(0);
    expect(bench.door.devices.size).to.equal(0);
    expect(bench.clock.pending).to.equal(0);
    expect(bench.door.callsOf('connect')).to.have.length(50);
    const connect = bench.peer.commands.find(
      (command) => bench.peer.nameOf(command) === 'Connect 0',
    );
    expect(connect && ConnectCommand.decode(connect.sqe).kato).to.equal(0);
  });

  it('no answer is an error, not an empty list', async () => {
    const bench = discoveryBench();
    bench.door.onConnect = (queue) => {
      bench.door.emit({
        kind: 'connectFailed',
        queue,
        failure: 'unreachable',
        reason: 0,
        privateData: new Uint8Array(),
        message: '',
      });
    };
    const error = await rejection(
      discoverIn(bench.environment, { address: '127.0.0.1' }),
      ConnectError,
    );
    expect(error.code).to.equal('CONNECT_NO_ANSWER');
  });

  it('refuses record counts and formats that are not believable', async () => {
    for (const header of [
      { numrec: 2n ** 54n + 2n },
      { numrec: 2n ** 64n - 1n },
      { numrec: 100_000n },
      { recfmt: 1 },
    ]) {
      const reader = new Reader(log([{}], header));
      await rejection(readDiscoveryLog(reader), ProtocolError);
      expect(reader.reads).to.equal(1);
    }
    const bench = discoveryBench();
    bench.peer.logs.set(0x70, log([], { numrec: 2n ** 54n + 2n }));
    await rejection(discoverIn(bench.environment, { address: '127.0.0.1' }), ProtocolError);
    expect(bench.door.queues.size).to.equal(0);
    expect(bench.door.devices.size).to.equal(0);
  });

  it('reads again when the log changes, and gives up when it never stops', async () => {
    const reader = new Reader(log([{}]));
    reader.onRead = () => {
      if (reader.reads === 2) reader.page = log([{}, { traddr: '192.0.2.8' }], { genctr: 8n });
    };
    const { generation, paths } = await readDiscoveryLog(reader);
    expect(generation).to.equal(8n);
    expect(paths.map(({ address }) => address)).to.deep.equal(['192.0.2.7', '192.0.2.8']);

    const restless = new Reader(log([{}]));
    restless.onRead = () => {
      restless.page = log([{}], { genctr: BigInt(restless.reads) });
    };
    await rejection(readDiscoveryLog(restless), ProtocolError);
    expect(restless.reads).to.be.lessThan(20);
  });

  it('shows damaged records with what is wrong, and no control characters', async () => {
    const reader = new Reader(
      log([
        { subnqn: 'nqn.2024-01.org.example:\x1b[31mred' },
        { traddr: 'host.example.org' },
        { trsvcid: 'http' },
        { trtype: 9, adrfam: 77, subtype: 50 },
        { subnqn: '' },
      ]),
    );
    const { paths } = await readDiscoveryLog(reader);
    expect(paths.map(({ problem }) => problem !== undefined)).to.deep.equal([
      true,
      true,
      true,
      false,
      true,
    ]);
    expect(paths[0]?.nqn).to.equal('nqn.2024-01.org.example:?[31mred');
    expect(paths[3]).to.include({
      transport: 'unknown',
      addressFamily: 'unknown',
      kind: 'unknown',
    });
  });
});
