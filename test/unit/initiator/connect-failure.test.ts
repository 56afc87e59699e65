/** Every way in which a connect fails has its own reason and its own words. */
import { expect } from 'chai';
import { ConnectError } from '../../../initiator/errors.ts';
import type { ConnectReason } from '../../../initiator/errors.ts';
import type { ConnectFailure } from '../../../native/index.ts';
import { STATUS_TABLE } from '../../../native/wire/status.ts';
import type { StatusName } from '../../../native/wire/status.ts';
import { HOST_NQN, makeBench, rejection, settle } from './support.ts';
import type { Bench } from './support.ts';
import { NQN } from './fake-controller.ts';

function failAtCm(
  bench: Bench,
  failure: ConnectFailure,
  reason = 0,
  privateData = new Uint8Array(),
): void {
  bench.door.onConnect = (queue) => {
    bench.door.queues.delete(queue);
    bench.door.emit({
      kind: 'connectFailed',
      queue,
      failure,
      reason,
      privateData,
      message: 'detail from below',
    });
  };
}

function expectNothingLeft({ door, clock }: Bench): void {
  expect(door.queues.size, 'queues').to.equal(0);
  expect(door.devices.size, 'devices').to.equal(0);
  expect(door.started, 'reactors').to.equal(undefined);
  expect(clock.pending, 'timers').to.equal(0);
}

describe('a connect that fails', () => {
  const cm: [ConnectFailure, ConnectReason, RegExp][] = [
    ['unreachable', 'CONNECT_NO_ANSWER', /nobody answers at 127\.0\.0\.1:4420 within 5000 ms/],
    ['portUnreachable', 'CONNECT_PORT_UNREACHABLE', /UDP port 4791 is closed.*start the target/],
    ['badIcrc', 'CONNECT_BAD_ICRC', /wrong ICRC.*without NAT/],
    ['mtuTooLarge', 'CONNECT_MTU_TOO_LARGE', /path MTU is too large/],
    ['cancelled', 'CONNECT_CANCELLED', /cancelled/],
    ['noResources', 'CONNECT_NO_RESOURCES', /not enough resources/],
    ['addressInUse', 'CONNECT_SOURCE_ADDRESS', /in use by another process/],
  ];
  for (const [failure, code, text] of cm) {
    it(`${failure} below`, async () => {
      const bench = makeBench();
      failAtCm(bench, failure);
      const error = await rejection(bench.connect(), ConnectError);
      expect(error.code).to.equal(code);
      expect(error.message).to.match(text).and.to.contain('detail from below');
      expectNothingLeft(bench);
    });
  }

  const rejections: [number, number[], ConnectReason, RegExp][] = [
    [8, [], 'CONNECT_NO_LISTENER', /no NVMe target listens on this port; the usual one is 4420/],
    [10, [], 'CONNECT_REJECTED', /stale connection/],
    [12, [], 'CONNECT_REJECTED', /not one of its own/],
    [26, [], 'CONNECT_REJECTED', /path MTU/],
    [77, [], 'CONNECT_REJECTED', /CM reject reason 77/],
    [28, [], 'CONNECT_REJECTED', /without a reason/],
    [28, [0, 0, 6, 0], 'CONNECT_REJECTED', /no resources/],
    [28, [0, 0, 4, 0], 'CONNECT_REJECTED', /invalid host submission queue size/],
    [28, [0, 0, 7, 0], 'CONNECT_REJECTED', /inbound RDMA read depth/],
    [28, [0, 0, 99, 0], 'CONNECT_REJECTED', /status 99/],
    [28, [1, 0, 6, 0], 'CONNECT_REJECTED', /status 6/],
    [28, [0, 0, 6], 'CONNECT_REJECTED', /without a reason/],
  ];
  for (const [reason, data, code, text] of rejections) {
    it(`rejected with reason ${reason} and private data [${data.join(' ')}]`, async () => {
      const bench = makeBench();
      failAtCm(bench, 'rejected', reason, Uint8Array.from(data));
      const error = await rejection(bench.connect(), ConnectError);
      expect(error.code).to.equal(code);
      expect(error.message).to.match(text);
      expectNothingLeft(bench);
    });
  }

  const IN_DATA = 1n << 16n;
  const statuses: [StatusName, bigint, ConnectReason, RegExp][] = [
    ['connectInvalid', IN_DATA | 256n, 'CONNECT_UNKNOWN_NQN', /unknown NQN.*org\.example:disk/],
    ['connectInvalid', IN_DATA | 512n, 'CONNECT_INVALID_PARAMETER', /HOSTNQN.*calls itself/],
    ['connectInvalid', IN_DATA | 0n, 'CONNECT_INVALID_PARAMETER', /field HOSTID /],
    ['connectInvalid', IN_DATA | 16n, 'CONNECT_INVALID_PARAMETER', /field CNTLID /],
    ['connectInvalid', 44n, 'CONNECT_INVALID_PARAMETER', /field SQSIZE/],
    ['connectInvalid', 42n, 'CONNECT_INVALID_PARAMETER', /field QID /],
    ['connectInvalid', 48n, 'CONNECT_INVALID_PARAMETER', /field KATO/],
    ['connectInvalid', 3n, 'CONNECT_INVALID_PARAMETER', /byte 3 of the command/],
    ['connectInvalidHost', 0n, 'CONNECT_HOST_NOT_ALLOWED', /not allowed/],
    ['connectBusy', 0n, 'CONNECT_BUSY', /no controller left/],
    ['authenticationRequired', 0n, 'CONNECT_AUTHENTICATION_REQUIRED', /authentication/],
  ];
  for (const [status, result, code, text] of statuses) {
    it(`Connect answered with ${status}, ${result.toString(16)}h`, async () => {
      const bench = makeBench();
      bench.peer.fail('Connect 0', STATUS_TABLE[status].value | 0x4000, result);
      const error = await rejection(bench.connect(), ConnectError);
      expect(error.code).to.equal(code);
      expect(error.message).to.match(text);
      expect(error.object).to.equal(NQN);
      expectNothingLeft(bench);
    });
  }

  it('names this host when it is not allowed', async () => {
    const { peer, connect } = makeBench();
    peer.fail('Connect 0', 'connectInvalidHost');
    expect((await rejection(connect(), ConnectError)).message).to.contain(HOST_NQN);
  });

  it('an I/O queue that is refused ends the whole attempt', async () => {
    const bench = makeBench();
    bench.peer.fail('Connect 2', 'connectInvalid', 44n);
    const error = await rejection(bench.connect({ queues: 3 }), ConnectError);
    expect(error.message).to.contain('SQSIZE');
    expectNothingLeft(bench);
  });

  it('authentication asked for in the answer of Connect', async () => {
    const bench = makeBench();
    bench.peer.connectResult = { cntlid: 1, atr: true };
    const error = await rejection(bench.connect(), ConnectError);
    expect(error.code).to.equal('CONNECT_AUTHENTICATION_REQUIRED');
    expectNothingLeft(bench);
  });

  it('an invalid controller id in the answer of Connect', async () => {
    for (const cntlid of [0, 0xfff0, 0xffff]) {
      const bench = makeBench();
      bench.peer.connectResult = { cntlid };
      const error = await rejection(bench.connect(), ConnectError);
      expect(error.code).to.equal('CONNECT_UNUSABLE_CONTROLLER');
      expectNothingLeft(bench);
    }
  });

  it('no answer to a command of the bring-up', async () => {
    for (const name of ['Connect 0', 'Get CAP', 'identify 01', 'setFeatures 07', 'identify 06']) {
      const bench = makeBench();
      bench.peer.stopAt(name);
      const failing = rejection(bench.connect({ keepAliveMs: 0 }), ConnectError);
      await settle();
      bench.clock.advance(5000);
      const error = await failing;
      expect(error.code, name).to.equal('CONNECT_TIMEOUT');
      expect(error.message).to.contain('5000 ms');
      expectNothingLeft(bench);
    }
  });

  it('the connection dropped in the middle of the bring-up', async () => {
    for (const name of ['Connect 0', 'Get CAP', 'Connect 1', 'identify 06']) {
      const bench = makeBench();
      bench.peer.stopAt(name);
      const failing = rejection(bench.connect({ keepAliveMs: 0 }), ConnectError);
      await settle();
      bench.peer.dropQueue(bench.peer.queueOf(name === 'Connect 1' ? 1 : 0), 'retry exceeded');
      expect((await failing).code, name).to.equal('CONNECT_LOST');
      expectNothingLeft(bench);
    }
  });
});
