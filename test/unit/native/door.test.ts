/**
 * The addon itself: its names and arities are those of the Door, every function refuses wrong use by an Error that says
 * what is wrong, and where no peer is needed each is used rightly as well. Commands between a real target and initiator
 * are the business of the end-to-end tests.
 */
import { once } from 'node:events';
import { Worker } from 'node:worker_threads';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect } from 'chai';
import { DOOR_FUNCTIONS, doorPath, loadDoor } from '../../../native/index.ts';
import type { Door, DoorEvent } from '../../../native/index.ts';
import { CONNECT } from '../../support/door-options.ts';
import { WRONG } from '../../support/door-wrong-uses.ts';
import { decodeEvents, RECORD_BYTES_MAX } from '../../../native/events.ts';

type Call = (...args: unknown[]) => unknown;

const SQE = new Uint8Array(64);

function thrownBy(call: () => unknown): Error & { code?: string } {
  try {
    call();
  } catch (error) {
    if (error instanceof Error) return error;
  }
  throw new Error('nothing was thrown');
}

describe('the door', () => {
  const door = loadDoor();
  const calls = door as unknown as Readonly<Record<keyof Door, Call>>;
  const names = Object.keys(DOOR_FUNCTIONS) as (keyof Door)[];
  const buffer = new Uint8Array(RECORD_BYTES_MAX);
  let events: DoorEvent[] = [];
  let heard: (() => void) | undefined;

  function drain(): void {
    for (;;) {
      const bytes = door.drain(buffer);
      if (bytes === 0) break;
      events.push(...decodeEvents(buffer, bytes));
    }
    heard?.();
  }

  function start(cores: readonly number[] = [-1, -1]): void {
    events = [];
    door.start({ cores, onWake: drain });
  }

  async function event(find: (candidate: DoorEvent) => boolean): Promise<DoorEvent> {
    for (;;) {
      const found = events.find(find);
      if (found) return found;
      await new Promise<void>((resolve) => {
        heard = resolve;
      });
    }
  }

  async function done(operation: number): Promise<DoorEvent> {
    return event((each) => each.kind === 'operationDone' && each.operation === operation);
  }

  function live(): Readonly<Record<string, number>> {
    const counters = Object.entries(door.counters());
    return Object.fromEntries(
      counters.filter(([name, value]) => name.startsWith('live.') && value !== 0),
    );
  }

  afterEach(() => {
    door.stop();
    drain();
  });

  it('has the names and arities of the interface', () => {
    expect(
      Object.fromEntries(Object.entries(door).map(([name, f]) => [name, (f as Call).length])),
    ).to.deep.equal(DOOR_FUNCTIONS);
  });

  for (const name of names.filter((each) => DOOR_FUNCTIONS[each] > 0)) {
    it(`${name} says how many arguments it needs`, () => {
      const error = thrownBy(() => calls[name]());
      expect(error).to.be.instanceOf(TypeError);
      expect(error.message).to.equal(`${name}: needs ${DOOR_FUNCTIONS[name]} arguments`);
    });
  }

  for (const name of names.filter((each) => WRONG[each].length > 0)) {
    it(`${name} refuses wrong arguments`, () => {
      start();
      for (const { args, error: expected, message } of WRONG[name]) {
        const error = thrownBy(() => calls[name](...args));
        expect(error.code ?? error.constructor.name, error.message).to.equal(expected);
        expect(error.message).to.match(message);
      }
      expect(live()).to.deep.equal({});
    });
  }

  it('refuses what needs the runtime before start and after stop, and stops twice', () => {
    for (const round of [1, 2]) {
      for (const [name, args] of [
        ['openDevice', [{ provider: 'auto', address: '127.0.0.1' }]],
        ['createTable', []],
        ['reactors', []],
        ['submit', [1, SQE, 'none', 0]],
      ] as const) {
        expect(thrownBy(() => calls[name](...args)).code, `${name} ${round}`).to.equal('ENOTCONN');
      }
      start();
      door.stop();
      door.stop();
    }
  });

  it('start refuses cores that cannot be', () => {
    const wrong = [[], [-2], ['0'], [4000], Array.from({ length: 65 }, () => -1)];
    for (const cores of wrong) {
      expect(() => calls.start({ cores, onWake: drain }), JSON.stringify(cores)).to.throw(Error);
    }
    expect(() => calls.start({ cores: [-1], onWake: 1 })).to.throw(TypeError, /onWake/);
    start();
  });

  it('tells of its reactors', () => {
    start([-1, -1, -1]);
    const reactors = door.reactors();
    expect(reactors.map(({ index, core, queues }) => ({ index, core, queues }))).to.deep.equal(
      [0, 1, 2].map((index) => ({ index, core: -1, queues: 0 })),
    );
    for (const reactor of reactors) expect(reactor.cpuNs > 0n).to.equal(true);
    expect(door.counters()).to.include.keys('reactor.0.iterations', 'reactor.2.sleeps');
  });

  describe('backings', () => {
    let folder: string;
    before(() => {
      folder = mkdtempSync(join(tmpdir(), 'nvmeof-door-'));
    });
    after(() => {
      rmSync(folder, { recursive: true });
    });

    it('open, tell of themselves, grow and close', async () => {
      start();
      const path = join(folder, 'image');
      writeFileSync(path, new Uint8Array(8192));
      const backing = await door.openBacking({ kind: 'file', path, blockSize: 512 });
      expect(door.backingInfo(backing)).to.deep.include({
        kind: 'file',
        size: 8192n,
        blockSize: 512,
        readOnly: false,
        volatileWriteCache: true,
      });
      expect(live()).to.deep.equal({ 'live.backings': 1 });
      const memory = await door.openBacking({ kind: 'memory', size: 1n << 20n, blockSize: 4096 });
      await door.resizeBacking(memory, 2n << 20n);
      expect(door.backingInfo(memory).size).to.equal(2n << 20n);
      await Promise.all([door.closeBacking(backing), door.closeBacking(memory)]);
      expect(() => door.backingInfo(backing)).to.throw(Error, /no backing/);
      expect(live()).to.deep.equal({});
    });

    it('that share a file see the marks of each other; others have none', async () => {
      start();
      const path = join(folder, 'shared');
      writeFileSync(path, new Uint8Array(8192));
      const file = { kind: 'file', path, blockSize: 512, shared: true } as const;
      const [one, other, alone] = await Promise.all([
        door.openBacking(file),
        door.openBacking(file),
        door.openBacking({ kind: 'memory', size: 1n << 20n, blockSize: 512 }),
      ]);
      const mark = (1n << 62n) - 1n;
      expect(door.backingInfo(one).marks).to.be.true;
      door.setMark(one, mark, true);
      expect(door.markedElsewhere(other, mark)).to.be.true;
      expect(door.markedElsewhere(one, mark)).to.be.false;
      door.setMark(one, mark, false);
      expect(door.markedElsewhere(other, mark)).to.be.false;
      expect(door.backingInfo(alone).marks).to.be.false;
      expect(thrownBy(() => door.setMark(alone, 1n, true)).code).to.equal('EOPNOTSUPP');
      expect(thrownBy(() => door.setMark(one, mark + 1n, true)).code).to.equal('EINVAL');
      await Promise.all([one, other, alone].map((backing) => door.closeBacking(backing)));
    });

    it('fail with a code and a sentence that names the file', async () => {
      start();
      const path = join(folder, 'missing');
      const error = await door.openBacking({ kind: 'file', path, blockSize: 512 }).then(
        () => undefined,
        (reason: unknown) => reason,
      );
      expect(error).to.be.instanceOf(Error).with.property('code', 'ENOENT');
      expect(error).to.have.property('message').that.includes(path);
    });

    it('stay open while a table names them', async () => {
      start();
      const backing = await door.openBacking({ kind: 'null', size: 1n << 20n, blockSize: 512 });
      const table = door.createTable();
      const options = { backing, writeProtected: false, maxTransferBytes: 131072, anaGroup: 1 };
      const change = door.setNamespace(table, 7, options);
      expect(thrownBy(() => void door.closeBacking(backing)).code).to.equal('EBUSY');
      expect(await done(change)).to.include({ error: 0, message: '' });
      expect(thrownBy(() => void door.closeBacking(backing)).code).to.equal('EBUSY');
      expect(thrownBy(() => door.removeNamespace(table, 8)).code).to.equal('ENOENT');
      expect(await done(door.removeNamespace(table, 7))).to.include({ error: 0 });
      await done(door.setNamespace(table, 7, options));
      await done(door.setNamespace(table, 7, { ...options, writeProtected: true }));
      for (const anaGroup of [0, 129]) {
        const refused = thrownBy(() => door.setNamespace(table, 7, { ...options, anaGroup }));
        expect(refused.message).to.include('anaGroup');
      }
      for (const [group, status] of [
        [0, 0x302],
        [129, 0x302],
        [1, 0x8000],
      ] as const) {
        const refused = thrownBy(() => door.setAccess(table, 1, group, status));
        expect(refused.message).to.include(status === 0x302 ? 'group' : 'status');
      }
      expect(await done(door.setAccess(table, 1, 128, 0x302))).to.include({ error: 0 });
      await done(door.destroyTable(table));
      await door.closeBacking(backing);
      expect(live()).to.deep.equal({});
    });

    it('are closed by stop, tables and all', async () => {
      start();
      const backing = await door.openBacking({ kind: 'null', size: 1n << 20n, blockSize: 512 });
      const table = door.createTable();
      const change = door.setNamespace(table, 1, {
        backing,
        writeProtected: true,
        maxTransferBytes: 4096,
        anaGroup: 1,
      });
      door.stop();
      drain();
      expect(await done(change)).to.include({ error: 0 });
      expect(live()).to.deep.equal({});
    });
  });

  it('has leases that run out, are put off, and stay over', async () => {
    start();
    const lease = door.openLease();
    expect(door.leaseLeft(lease)).to.equal(Infinity);
    door.setLease(lease, 60_000);
    expect(door.leaseLeft(lease)).to.be.within(1, 60_000);
    door.setLease(lease, 0);
    expect(door.leaseLeft(lease)).to.equal(Infinity);
    door.setLease(lease, 1);
    while (door.leaseLeft(lease) > 0) await new Promise((resolve) => setTimeout(resolve, 1));
    door.setLease(lease, 60_000);
    expect(door.leaseLeft(lease)).to.equal(0);
    expect(live()).to.deep.equal({ 'live.leases': 1 });
    door.closeLease(lease);
    expect(thrownBy(() => door.leaseLeft(lease)).code).to.equal('ENOENT');
    expect(live()).to.deep.equal({});
  });

  describe('a device', () => {
    /** One of its own in 127.0.0.0/8, so that nobody else holds UDP port 4791 there. */
    const address = `127.${1 + (process.pid % 250)}.${(process.pid >> 8) % 256}.77`;

    it('opens once, listens, and closes with everything on it', () => {
      start();
      const device = door.openDevice({ provider: 'auto', address, pathMtu: 1024 });
      expect(door.deviceInfo(device)).to.include({ provider: 'soft', address, pathMtu: 1024 });
      expect(door.deviceInfo(device).receiveBufferBytes).to.be.greaterThan(0);
      expect(thrownBy(() => door.openDevice({ provider: 'soft', address })).code).to.equal(
        'EADDRINUSE',
      );
      const listener = door.listen(device, 4420);
      expect(thrownBy(() => door.listen(device, 4420)).code).to.equal('EADDRINUSE');
      door.unlisten(listener);
      door.listen(device, 4420);
      expect(live()).to.include({ 'live.devices': 1, 'live.listeners': 1 });
      door.closeDevice(device);
      expect(live()).to.deep.equal({});
      door.closeDevice(door.openDevice({ provider: 'soft', address }));
    });

    it('takes faults when it was opened for them, and names what is wrong with a rule', () => {
      start();
      const plain = door.openDevice({ provider: 'soft', address });
      expect(thrownBy(() => door.setFaults(plain, { rules: [] })).code).to.equal('EPERM');
      door.closeDevice(plain);
      const device = door.openDevice({ provider: 'soft', address, faultInjection: true });
      const wrong: readonly (readonly [unknown, string])[] = [
        [{ drop: 1.5 }, 'faults.rules[1].drop must be a number from 0 to 1'],
        [{ drop: Number.NaN }, 'faults.rules[1].drop must be a number from 0 to 1'],
        [{ drop: '1' }, 'faults.rules[1].drop must be a number'],
        [{ duplicate: -1 }, 'faults.rules[1].duplicate must be a number from 0 to 1'],
        [{ delayMs: 60_001 }, 'faults.rules[1].delayMs must be a number from 0 to 60000'],
        [{ jitterMs: -1 }, 'faults.rules[1].jitterMs must be a number from 0 to 60000'],
        [{ reorder: 0.1, reorderMs: 0 }, 'rules[1].reorderMs must be more than 0'],
        [{ direction: 'up' }, "faults.rules[1].direction must be one of 'in', 'out', 'both'"],
        [{ peer: 'localhost' }, 'numeric'],
        [{ peer: '::1' }, 'one is IPv4 and the other IPv6'],
        [7, 'faults.rules[1] must be an object'],
      ];
      for (const [rule, message] of wrong) {
        const call = (): void => void calls.setFaults(device, { rules: [{}, rule] });
        expect(call, message).to.throw(Error, message);
      }
      for (const [faults, message] of [
        [{}, 'faults.rules must be an array'],
        [{ rules: Array.from({ length: 17 }, () => ({})) }, 'at most 16 rules'],
        [{ rules: [], queuePackets: 0 }, 'faults.queuePackets must be'],
        [{ rules: [], seed: -1 }, 'faults.seed must be'],
      ] as const) {
        expect(() => void calls.setFaults(device, faults), message).to.throw(Error, message);
      }
      expect(door.counters()).to.include({ 'soft.fault.in_dropped': 0 });
      door.setFaults(device, { rules: [{ drop: 1, peer: '127.0.0.9', direction: 'out' }] });
      door.setFaults(device, { rules: [{ delayMs: 0.5, jitterMs: 2 }], seed: 5, queuePackets: 9 });
      door.setFaults(device, { rules: [] });
      door.closeDevice(device);
      expect(live()).to.deep.equal({});
    });

    it('gives buffers that freeBuffer takes out of reach', () => {
      start();
      const device = door.openDevice({ provider: 'auto', address });
      for (const bytes of [0, -1, 2 ** 50, 0.5]) {
        expect(() => door.allocateBuffer(device, bytes), String(bytes)).to.throw(Error, /bytes/);
      }
      const small = door.allocateBuffer(device, 1000);
      const large = door.allocateBuffer(device, 8 << 20);
      expect(small.memory.byteLength).to.equal(1000);
      const view = new Uint8Array(large.memory);
      expect(view.length).to.equal(8 << 20);
      expect(view[0]).to.equal(0);
      view.fill(0xa5);
      expect(live()).to.include({ 'live.buffers': 2 });
      door.freeBuffer(large.id);
      expect(view.length).to.equal(0);
      expect(large.memory.byteLength).to.equal(0);
      expect(thrownBy(() => door.freeBuffer(large.id)).code).to.equal('ENOENT');
      door.closeDevice(device);
      new Uint8Array(small.memory).fill(1);
      door.stop();
      expect(small.memory.byteLength).to.equal(0);
      expect(live()).to.deep.equal({});
    });

    it('connects to nobody, and says so', async () => {
      start();
      const device = door.openDevice({ provider: 'auto', address });
      expect(thrownBy(() => door.connect(device, { ...CONNECT, address: '::1' })).code).to.equal(
        'EAFNOSUPPORT',
      );
      const queue = door.connect(device, { ...CONNECT, address, port: 4421, timeoutMs: 2000 });
      expect(thrownBy(() => door.complete(queue, 1, 0n, 0)).message).to.match(/an initiator/);
      const failed = await event((each) => each.kind === 'connectFailed' && each.queue === queue);
      expect(failed).to.include({ failure: 'rejected' });
      expect(thrownBy(() => door.submit(queue, SQE, 'none', 0)).code).to.equal('ENOTCONN');
      door.closeQueue(queue);
      door.cancel(queue, 1);
      door.complete(queue, 1, 0n, 0);
      expect(await done(door.abort(queue, 1))).to.include({ error: 0, value: 0 });
      door.closeDevice(device);
      expect(live()).to.deep.equal({});
    });

    it('reports a queue that ends with its device', async () => {
      start();
      const device = door.openDevice({ provider: 'auto', address });
      const queue = door.connect(device, { ...CONNECT, address: '127.0.0.2', timeoutMs: 60_000 });
      door.closeDevice(device);
      drain();
      const end = await event((each) => 'queue' in each && each.queue === queue);
      expect(end.kind).to.be.oneOf(['connectFailed', 'queueClosed']);
      expect(live()).to.deep.equal({});
    });
  });

  it('ends with a worker that leaves everything open', async () => {
    const worker = new Worker(
      `const door = require(${JSON.stringify(doorPath())});
       door.start({ cores: [-1], onWake() {} });
       door.createTable();
       void door.openBacking({ kind: 'null', size: 1048576n, blockSize: 512 });`,
      { eval: true },
    );
    const [code] = (await once(worker, 'exit')) as [number];
    expect(code).to.equal(0);
  });
});
