/** The control socket under clients that behave well, badly, or not at all. */
import { expect } from 'chai';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import type { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { z } from 'zod';
import { ManualClock } from '../../../../native/common/clock.ts';
import { ControlServer } from '../../../../target/index.ts';
import type { ControlOptions } from '../../../../target/index.ts';
import { RpcCode } from '../../../../target/control/errors.ts';
import { method } from '../../../../target/control/method.ts';
import type { Method } from '../../../../target/control/method.ts';
import { METHODS } from '../../../../target/control/methods.ts';
import { eventually } from '../../../support/counters.ts';
import { ControlRig } from './support.ts';
import type { Answered } from './support.ts';

const CLIENTS = 4;
const LIMITS = { requestBytes: 4096, requestMs: 1000, idleMs: 60_000, answerMs: 5000 };
const SOON_MS = 4000;

/** A client that sends bytes, and collects the lines that come. */
class Client {
  readonly socket: Socket;
  readonly lines: Answered[] = [];
  ended = false;
  #partial = '';

  constructor(path: string) {
    this.socket = connect(path);
    this.socket.on('error', () => undefined);
    this.socket.on('close', () => {
      this.ended = true;
    });
    this.socket.on('data', (chunk: Buffer) => {
      const parts = (this.#partial + chunk.toString()).split('\n');
      this.#partial = parts.pop() ?? '';
      this.lines.push(...parts.map((line) => JSON.parse(line) as Answered));
    });
  }

  async ready(): Promise<this> {
    if (this.socket.connecting) await once(this.socket, 'connect');
    return this;
  }

  send(...messages: object[]): void {
    for (const message of messages) {
      this.socket.write(`${JSON.stringify({ jsonrpc: '2.0', ...message })}\n`);
    }
  }

  async answers(count: number): Promise<Answered[]> {
    await eventually(
      () => this.lines.length >= count,
      SOON_MS,
      () => `${count} answers, only ${this.lines.length}`,
    );
    return this.lines;
  }

  async end(): Promise<void> {
    await eventually(
      () => this.ended,
      SOON_MS,
      () => 'the end of the connection',
    );
  }
}

describe('the control server', () => {
  let control: ControlRig;
  let server: ControlServer;
  let folder = '';
  const clock = new ManualClock();
  const clients: Client[] = [];
  /** Ends the method 'test.wait'. */
  let release = (): void => undefined;
  let finished = 0;
  const WAIT: Method = method({
    name: 'test.wait',
    summary: 'A change that takes its time',
    kind: 'change',
    params: z.strictObject({}),
    result: z.null(),
    example: {},
    run: async () => {
      await new Promise<void>((resolve) => {
        release = resolve;
      });
      finished += 1;
      return null;
    },
  });
  const LARGE: Method = method({
    name: 'test.large',
    summary: 'An answer that no buffer of a socket holds',
    kind: 'look',
    params: z.strictObject({}),
    result: z.string(),
    example: {},
    run: () => 'x'.repeat(8 << 20),
  });

  beforeEach(async () => {
    finished = 0;
    folder = mkdtempSync(join(tmpdir(), 'nvmeof-control-'));
    control = await ControlRig.start();
    const options: ControlOptions = {
      ...control.tools,
      path: join(folder, 'target.sock'),
      clock,
      clientsMax: CLIENTS,
      limits: LIMITS,
      methods: [...METHODS, WAIT, LARGE],
    };
    server = await ControlServer.listen(options);
  });
  afterEach(async () => {
    for (const client of clients.splice(0)) client.socket.destroy();
    release();
    await server.close();
    expect(readdirSync(folder)).to.deep.equal([]);
    expect(clock.pending).to.equal(0);
    await control.stop();
    rmSync(folder, { recursive: true });
  });

  const client = (): Promise<Client> => {
    const one = new Client(server.path);
    clients.push(one);
    return one.ready();
  };
  /** Whether the next client is served. */
  const works = async (): Promise<void> => {
    const one = await client();
    one.send({ id: 'works', method: 'log.get' });
    expect((await one.answers(1))[0]).to.deep.include({ id: 'works', result: { level: 'info' } });
    one.socket.destroy();
    await one.end();
  };

  it('answers what comes in one piece or in many, in order, and batches', async () => {
    const one = await client();
    one.send({ id: 1, method: 'log.get' }, { method: 'log.get' }, { id: 2, method: 'log.get' });
    one.socket.write('\r\n\n  \n');
    for (const byte of '{"jsonrpc":"2.0","id":3,"method":"log.get"}\r\n') one.socket.write(byte);
    one.socket.write('[{"jsonrpc":"2.0","id":4,"method":"log.get"}]\n');
    const lines = await one.answers(4);
    expect(lines.slice(0, 3).map(({ id }) => id)).to.deep.equal([1, 2, 3]);
    expect(lines[3]).to.be.an('array').of.length(1);
  });

  it('answers a client that has ended its side, also without a newline', async () => {
    const one = await client();
    one.socket.end('{"jsonrpc":"2.0","id":1,"method":"log.get"}');
    expect((await one.answers(1))[0]?.id).to.equal(1);
    await one.end();
  });

  it('survives garbage, and goes on with the same client', async () => {
    const one = await client();
    one.socket.write(Buffer.from([0xff, 0x00, 0xfe, 0x0a]));
    one.socket.write('GET / HTTP/1.1\r\n');
    one.send({ id: 1, method: 'log.get' });
    const lines = await one.answers(3);
    expect(lines.map(({ error }) => error?.code)).to.deep.equal([
      RpcCode.parseError,
      RpcCode.parseError,
      undefined,
    ]);
  });

  for (const [what, bytes] of [
    ['a line', `${'x'.repeat(LIMITS.requestBytes + 1)}\n`],
    ['the part of a line', 'x'.repeat(LIMITS.requestBytes + 1)],
    ['much more', 'x'.repeat(4 << 20)],
  ] as const) {
    it(`hangs up on ${what} that is too long, and says so`, async () => {
      const one = await client();
      one.socket.write(bytes);
      expect((await one.answers(1))[0]?.error).to.include({ code: RpcCode.tooLarge });
      await one.end();
      await works();
    });
  }

  it('waits a limited time for the rest of a request, however it trickles in', async () => {
    const one = await client();
    one.send({ id: 1, method: 'log.get' });
    await one.answers(1);
    one.socket.write('{"jsonrpc"');
    // The time runs when the first byte has come.
    await eventually(
      () => clock.pending === 1,
      SOON_MS,
      () => 'a timer',
    );
    await new Promise((resolve) => setImmediate(resolve));
    for (let step = 0; step < 9 && !one.ended; step++) {
      one.socket.write(' ');
      await new Promise((resolve) => setImmediate(resolve));
      clock.advance(LIMITS.requestMs / 8);
    }
    expect((await one.answers(2))[1]?.error).to.include({ code: RpcCode.tooSlow });
    await one.end();
    await works();
  });

  it('hangs up on a client that is silent for long', async () => {
    const one = await client();
    one.send({ id: 1, method: 'log.get' });
    await one.answers(1);
    clock.advance(LIMITS.idleMs - 1);
    one.send({ id: 2, method: 'log.get' });
    await one.answers(2);
    clock.advance(LIMITS.idleMs - 1);
    one.send({ id: 3, method: 'log.get' });
    await one.answers(3);
    clock.advance(LIMITS.idleMs);
    await one.end();
  });

  it('gives up a client that does not read its answer, and serves the others', async () => {
    const one = await client();
    one.socket.pause();
    one.send({ id: 1, method: 'test.large' }, { id: 2, method: 'log.get' });
    await eventually(
      () => clock.pending === 1,
      SOON_MS,
      () => 'a timer',
    );
    await works();
    const closed = once(one.socket, 'close');
    await eventually(
      () => {
        clock.advance(LIMITS.answerMs);
        return clock.pending === 0;
      },
      SOON_MS,
      () => 'no timer',
    );
    one.socket.resume();
    await closed;
  });

  it('ends the change of a client that has gone', async () => {
    const one = await client();
    one.send({ id: 1, method: 'test.wait' });
    await works();
    one.socket.destroy();
    await works();
    expect(finished).to.equal(0);
    release();
    await eventually(
      () => finished === 1,
      SOON_MS,
      () => 'the end of the change',
    );
    await works();
  });

  it('lets one client too many read why, also when it has asked in vain meanwhile', async () => {
    await Promise.all(Array.from({ length: CLIENTS }, client));
    const late = connect(server.path);
    try {
      late.on('error', () => undefined);
      // Nothing is read yet: what the server does now, it does before the client looks.
      late.pause();
      await once(late, 'connect');
      for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
      let text = '';
      late.on('data', (chunk: Buffer) => (text += chunk.toString()));
      const ended = once(late, 'close');
      late.write('{"jsonrpc":"2.0","id":1,"method":"target.status"}\n');
      await new Promise((resolve) => setImmediate(resolve));
      late.resume();
      await ended;
      expect(text).to.contain('try again later');
    } finally {
      late.destroy();
    }
  });

  it('serves a number of clients, and tells the others to try later', async () => {
    const first = await Promise.all(Array.from({ length: CLIENTS }, client));
    for (const one of first) one.send({ id: 1, method: 'log.get' });
    await Promise.all(first.map((one) => one.answers(1)));
    const late = await Promise.all(Array.from({ length: 50 }, client));
    for (const one of late) {
      expect((await one.answers(1))[0]?.error).to.include({ code: RpcCode.tooManyClients });
      await one.end();
    }
    first[0]?.socket.destroy();
    await first[0]?.end();
    await eventually(
      () => clock.pending === CLIENTS - 1,
      SOON_MS,
      () => 'one client less',
    );
    await works();
  });

  it('ten thousand clients in a row leave nothing behind', async () => {
    const open = (): number => readdirSync('/proc/self/fd').length;
    const before = open();
    for (let round = 0; round < 100; round++) {
      const crowd = Array.from({ length: 100 }, () => connect(server.path));
      await Promise.all(
        crowd.map(async (socket) => {
          socket.on('error', () => undefined);
          await new Promise<void>((resolve) => {
            socket.once('connect', resolve);
            socket.once('close', () => {
              resolve();
            });
          });
          socket.destroy();
        }),
      );
    }
    await eventually(
      () => open() <= before,
      SOON_MS,
      () => `${open()} descriptors, ${before} before`,
    );
    await works();
  }).timeout(30_000);

  it('closes when what was asked has been answered', async () => {
    const [one, idle] = await Promise.all([client(), client()]);
    one.send({ id: 1, method: 'test.wait' });
    idle.send({ id: 1, method: 'log.get' });
    await idle.answers(1);
    const closing = server.close();
    await new Promise((resolve) => setImmediate(resolve));
    expect(one.lines).to.deep.equal([]);
    expect(readdirSync(folder)).to.deep.equal([]);
    release();
    await closing;
    expect(await one.answers(1)).to.deep.equal([{ jsonrpc: '2.0', id: 1, result: null }]);
    await Promise.all([one.end(), idle.end()]);
  });
});
