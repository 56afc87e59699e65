/**
 * A target over the fake door and the manual clock, and hosts that speak to it in raw capsules.
 */
import { ManualClock } from '../../../native/common/clock.ts';
import type { ConnectionId, QueueId } from '../../../native/index.ts';
import type { RuntimeLease } from '../../../native/shared-runtime.ts';
import { SharedRuntime } from '../../../native/shared-runtime.ts';
import {
  CmRejectPrivateData,
  CmReplyPrivateData,
  CmRequestPrivateData,
  ConnectCommand,
  ConnectData,
  PropertyGetCommand,
  PropertySetCommand,
} from '../../../native/wire/fabrics.ts';
import { IdentifyController } from '../../../native/wire/identify.ts';
import { AdminOpcode, FabricsType } from '../../../native/wire/opcodes.ts';
import { PropertyOffset } from '../../../native/wire/registers.ts';
import { DataBlockDescriptor, KeyedDataBlockDescriptor } from '../../../native/wire/sgl.ts';
import {
  GetFeaturesCommand,
  GetLogPageCommand,
  IdentifyCommand,
  SetFeaturesCommand,
  Sqe,
} from '../../../native/wire/sqe.ts';
import { decodeStatus } from '../../../native/wire/status.ts';
import type { StatusName } from '../../../native/wire/status.ts';
import { Target } from '../../../target/index.ts';
import type { TargetEvents, TargetOptions } from '../../../target/index.ts';
import { FakeDoor } from '../../support/fake-door.ts';

export const NQN = 'nqn.2024-01.com.example:disk';
export const HOST_NQN = 'nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555';
export const HOST_ID = Uint8Array.from({ length: 16 }, (_, index) => index + 1);

export const MEMORY: TargetOptions = {
  ports: [{ address: '127.0.0.1' }],
  subsystems: [{ nqn: NQN, namespaces: [{ memory: '1M' }] }],
};

/** Everything queued so far, and what that queues, has run. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) await new Promise((resolve) => setImmediate(resolve));
}

export interface Answer {
  readonly result: bigint;
  readonly status: StatusName | undefined;
  readonly dnr: boolean;
  readonly data: Uint8Array;
}

type Sgl = { readonly bytes: number; readonly inCapsule?: boolean; readonly raw?: Uint8Array };

function sgl1({ bytes, inCapsule, raw }: Sgl): Uint8Array {
  if (raw) return raw;
  if (inCapsule) return DataBlockDescriptor.encode({ length: bytes, type: 0, subtype: 1 });
  const key = bytes === 0 ? 0 : 0x1234;
  return KeyedDataBlockDescriptor.encode({
    address: 0x1000n,
    length: bytes,
    key,
    type: 4,
    subtype: bytes === 0 ? 0 : 0xf,
  });
}

/** One queue as the host has it. */
export class HostQueue {
  readonly id: QueueId;
  readonly #rig: Rig;
  #nextCid = 1;
  #nextTag = 1;

  constructor(rig: Rig, id: QueueId) {
    this.#rig = rig;
    this.id = id;
  }

  get open(): boolean {
    return this.#rig.door.queues.has(this.id);
  }

  /** Sends raw bytes; returns the tag. */
  post(sqe: Uint8Array, data: Uint8Array = new Uint8Array()): number {
    const tag = this.#nextTag++;
    this.#rig.door.emit({ kind: 'capsule', queue: this.id, tag, sqe, data });
    return tag;
  }

  /** The answer to a tag, if it has come. */
  answered(tag: number): Answer | undefined {
    const found = this.#rig.door.completed.filter(
      (one) => one.queue === this.id && one.tag === tag,
    );
    if (found.length > 1) throw new Error(`tag ${tag} was answered ${found.length} times`);
    const [one] = found;
    if (!one) return undefined;
    const { name, dnr } = decodeStatus(one.status);
    return { result: one.result, status: name, dnr, data: one.data ?? new Uint8Array() };
  }

  async send(sqe: Uint8Array, data?: Uint8Array): Promise<Answer> {
    const tag = this.post(sqe, data);
    await settle();
    const answer = this.answered(tag);
    if (!answer) throw new Error('no answer');
    return answer;
  }

  cid(): number {
    return this.#nextCid++;
  }

  /** A general command; `bytes` is what the SGL names. */
  command(opcode: number, values: Partial<Sqe> = {}, bytes = 0): Promise<Answer> {
    return this.send(
      Sqe.encode({ opcode, psdt: 1, cid: this.cid(), sgl1: sgl1({ bytes }), ...values }),
    );
  }

  connect(
    values: Partial<ConnectCommand> = {},
    data: Partial<ConnectData> | Uint8Array = {},
    sgl: Sgl = { bytes: 1024 },
  ): Promise<Answer> {
    const sqe = ConnectCommand.encode({
      opcode: AdminOpcode.fabrics,
      psdt: 1,
      cid: this.cid(),
      fctype: FabricsType.connect,
      sgl1: sgl1(sgl),
      sqsize: 31,
      ...values,
    });
    const bytes =
      data instanceof Uint8Array
        ? data
        : ConnectData.encode({
            hostid: HOST_ID,
            cntlid: 0xffff,
            subnqn: NQN,
            hostnqn: HOST_NQN,
            ...data,
          });
    return this.send(sqe, bytes);
  }

  getProperty(ofst: number, size = 0): Promise<Answer> {
    return this.send(
      PropertyGetCommand.encode({
        opcode: AdminOpcode.fabrics,
        psdt: 1,
        cid: this.cid(),
        fctype: FabricsType.propertyGet,
        sgl1: sgl1({ bytes: 0 }),
        size,
        ofst,
      }),
    );
  }

  setProperty(ofst: number, value: bigint | number, size = 0): Promise<Answer> {
    return this.send(
      PropertySetCommand.encode({
        opcode: AdminOpcode.fabrics,
        psdt: 1,
        cid: this.cid(),
        fctype: FabricsType.propertySet,
        sgl1: sgl1({ bytes: 0 }),
        size,
        ofst,
        value: BigInt(value),
      }),
    );
  }

  enable(): Promise<Answer> {
    return this.setProperty(PropertyOffset.cc, 0x460061);
  }

  identify(values: Partial<IdentifyCommand>, bytes = 4096): Promise<Answer> {
    return this.send(
      IdentifyCommand.encode({
        opcode: AdminOpcode.identify,
        psdt: 1,
        cid: this.cid(),
        sgl1: sgl1({ bytes }),
        ...values,
      }),
    );
  }

  /** `bytes` asked for, and named by the SGL. */
  log(lid: number, bytes: number, values: Partial<GetLogPageCommand> = {}): Promise<Answer> {
    const numd = bytes / 4 - 1;
    return this.send(
      GetLogPageCommand.encode({
        opcode: AdminOpcode.getLogPage,
        psdt: 1,
        cid: this.cid(),
        sgl1: sgl1({ bytes }),
        lid,
        numdl: numd & 0xffff,
        numdu: numd >>> 16,
        ...values,
      }),
    );
  }

  getFeature(fid: number, values: Partial<GetFeaturesCommand> = {}, bytes = 0): Promise<Answer> {
    return this.send(
      GetFeaturesCommand.encode({
        opcode: AdminOpcode.getFeatures,
        psdt: 1,
        cid: this.cid(),
        sgl1: sgl1({ bytes }),
        fid,
        ...values,
      }),
    );
  }

  setFeature(fid: number, cdw11: number, values: Partial<SetFeaturesCommand> = {}, bytes = 0) {
    return this.send(
      SetFeaturesCommand.encode({
        opcode: AdminOpcode.setFeatures,
        psdt: 1,
        cid: this.cid(),
        sgl1: sgl1({ bytes }),
        fid,
        cdw11,
        ...values,
      }),
    );
  }

  /** Posts an Asynchronous Event Request; it stays open. */
  async requestEvent(cid = this.cid()): Promise<number> {
    const sqe = Sqe.encode({
      opcode: AdminOpcode.asyncEventRequest,
      psdt: 1,
      cid,
      sgl1: sgl1({ bytes: 0 }),
    });
    const tag = this.post(sqe);
    await settle();
    return tag;
  }

  keepAlive(values: Partial<Sqe> = {}): Promise<Answer> {
    return this.command(AdminOpcode.keepAlive, values);
  }

  async identifyController() {
    return IdentifyController.decode((await this.identify({ cns: 1 })).data);
  }

  /** The host disconnects. */
  async disconnect(): Promise<void> {
    this.#rig.door.endQueue(this.id, 'disconnected by the host');
    await settle();
  }
}

export interface Reject {
  readonly reason: number;
  readonly status: number;
}

interface Request {
  readonly hsqsize?: number;
  readonly hrqsize?: number;
  readonly cntlid?: number;
  readonly recfmt?: number;
  readonly responderResources?: number;
  readonly initiatorDepth?: number;
  readonly local?: string;
  readonly port?: number;
  readonly raw?: Uint8Array;
}

export class Rig {
  readonly door = new FakeDoor();
  readonly clock = new ManualClock();
  readonly events: (readonly [keyof TargetEvents, ...unknown[]])[] = [];
  readonly log: string[] = [];
  /** With their fields. */
  readonly records: (readonly [message: string, fields: object])[] = [];
  /** Those of level warn. */
  readonly warnings: (readonly [message: string, fields: object])[] = [];
  readonly #accepted = new Map<ConnectionId, QueueId>();
  #lease: RuntimeLease | undefined;
  #target: Target | undefined;
  #nextConnection = 1n;

  constructor() {
    this.door.leaseClock = this.clock;
    this.door.onAccept = (connection, queue) => {
      this.#accepted.set(connection, queue);
    };
  }

  get target(): Target {
    if (!this.#target) throw new Error('not started');
    return this.#target;
  }

  static async start(options: TargetOptions = MEMORY): Promise<Rig> {
    const rig = new Rig();
    await rig.start(options);
    return rig;
  }

  async start(options: TargetOptions): Promise<void> {
    const { door } = this;
    const shared = new SharedRuntime((runtime) => {
      door.start({ ...runtime, onWake: () => undefined });
      return door.runtime;
    });
    const lease = shared.acquire(options.cores ? { cores: options.cores } : {});
    const write = (fields: object, message: string): void => {
      this.log.push(message);
      this.records.push([message, fields]);
    };
    const warn = (fields: object, message: string): void => {
      this.warnings.push([message, fields]);
      write(fields, message);
    };
    this.#lease = lease;
    try {
      this.#target = await Target.start(options, {
        runtime: lease,
        clock: this.clock,
        log: { debug: write, info: write, warn, error: write },
      });
    } catch (error) {
      lease.release();
      throw error;
    }
    const names = [
      'controllerCreated',
      'controllerDeleted',
      'refused',
      'namespaceChanged',
    ] as const;
    for (const name of names) {
      this.#target.on(name, (...args: unknown[]) => {
        this.events.push([name, ...args]);
      });
    }
  }

  /** A connection request; returns its id. */
  request(qid: number, request: Request = {}): ConnectionId {
    const connection: ConnectionId = this.#nextConnection++;
    const listener = [...this.door.listeners].find(
      ([, { port }]) => port === (request.port ?? 4420),
    );
    if (!listener) throw new Error('nobody listens');
    const hsqsize = request.hsqsize ?? (qid === 0 ? 31 : 127);
    const privateData =
      request.raw ??
      CmRequestPrivateData.encode({
        recfmt: request.recfmt ?? 0,
        qid,
        hsqsize,
        hrqsize: request.hrqsize ?? hsqsize + 1,
        cntlid: request.cntlid ?? 0,
      });
    this.door.emit({
      kind: 'connectRequest',
      connection,
      listener: listener[0],
      peer: '127.0.0.2',
      peerPort: 50000,
      local: request.local ?? '127.0.0.1',
      responderResources: request.responderResources ?? 128,
      initiatorDepth: request.initiatorDepth ?? 0,
      privateData,
    });
    return connection;
  }

  /** Connection management only. */
  async open(qid: number, request: Request = {}): Promise<HostQueue | Reject> {
    const connection = this.request(qid, request);
    await settle();
    const rejected = this.door.callsOf('reject').find(({ args }) => args[0] === connection);
    if (rejected) {
      const [, reason, data] = rejected.args as [ConnectionId, number, Uint8Array];
      return { reason, status: CmRejectPrivateData.decode(data).sts };
    }
    const id = this.#accepted.get(connection);
    if (id === undefined) throw new Error('neither accepted nor rejected');
    return new HostQueue(this, id);
  }

  async queue(qid: number, request: Request = {}): Promise<HostQueue> {
    const opened = await this.open(qid, request);
    if (opened instanceof HostQueue) return opened;
    throw new Error(`rejected with ${opened.status}`);
  }

  /** A host with an enabled controller. */
  async host(
    values: Partial<ConnectCommand> = {},
    data: Partial<ConnectData> = {},
    request: Request = {},
  ): Promise<HostQueue> {
    const admin = await this.queue(0, request);
    const answer = await admin.connect(values, data);
    if (answer.status !== 'success') throw new Error(`Connect: ${String(answer.status)}`);
    await admin.enable();
    return admin;
  }

  /** An I/O queue of a host that is there. */
  async ioQueue(cntlid: number, qid = 1, data: Partial<ConnectData> = {}): Promise<HostQueue> {
    const queue = await this.queue(qid, { cntlid });
    const answer = await queue.connect(
      { qid, sqsize: 127 },
      { cntlid, ...data },
      { bytes: 1024, inCapsule: true },
    );
    if (answer.status !== 'success') throw new Error(`Connect: ${String(answer.status)}`);
    return queue;
  }

  replyOf(connection: number): { readonly crqsize: number } & Record<string, unknown> {
    const call = this.door.callsOf('accept')[connection];
    const options = call?.args[1] as { privateData: Uint8Array };
    return { ...options, ...CmReplyPrivateData.decode(options.privateData) };
  }

  /** Closes and checks that nothing is left behind. */
  async stop(): Promise<void> {
    const closing = this.target.close();
    // What hosts are given to leave: to read the log, and then to come to rest.
    for (const ms of [0, 250, 5]) {
      await settle();
      this.clock.advance(ms);
    }
    await closing;
    this.#lease?.release();
    const { door } = this;
    const left = {
      queues: door.queues.size,
      devices: door.devices.size,
      backings: door.backings.size,
      tables: door.tables.size,
      listeners: door.listeners.size,
      timers: this.clock.pending,
    };
    const leaked = Object.entries(left).filter(([, count]) => count > 0);
    if (leaked.length > 0) throw new Error(`left behind: ${JSON.stringify(leaked)}`);
  }
}
