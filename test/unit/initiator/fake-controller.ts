/**
 * A controller behind the fake door: answers what a bring-up asks and keeps namespaces in memory. `log` lists what it
 * was asked, in order. Tests change its answers by its public fields, `fail` a command by name, or `hold` it back.
 */
import { parseUuid } from '../../../native/common/uuid.ts';
import type { ConnectOptions, QueueId, Tag } from '../../../native/index.ts';
import {
  ConnectCommand,
  ConnectData,
  ConnectResult,
  FabricsCommand,
  PropertyGetCommand,
  PropertySetCommand,
} from '../../../native/wire/fabrics.ts';
import {
  Cns,
  DescriptorType,
  IdentifyController,
  IdentifyNamespace,
  IdentifyNvmController,
  encodeNamespaceDescriptors,
} from '../../../native/wire/identify.ts';
import { viewOf } from '../../../native/wire/layout.ts';
import { AdminOpcode, FabricsType, IoOpcode } from '../../../native/wire/opcodes.ts';
import { Cap, Cc, Csts, PropertyOffset } from '../../../native/wire/registers.ts';
import {
  BlockCommand,
  DatasetManagementCommand,
  DatasetManagementRange,
  GetLogPageCommand,
  IdentifyCommand,
  SetFeaturesCommand,
  Sqe,
} from '../../../native/wire/sqe.ts';
import { STATUS_TABLE } from '../../../native/wire/status.ts';
import type { StatusName } from '../../../native/wire/status.ts';
import type { FakeDoor, SubmittedCommand } from '../../support/fake-door.ts';

export interface FakeNamespace {
  lbaSize: 512 | 4096;
  data: Uint8Array;
  uuid: string;
  /** Identify fields to change. */
  identify?: Partial<IdentifyNamespace>;
}

export interface Answer {
  readonly status?: number;
  readonly result?: bigint;
  readonly data?: Uint8Array;
}

export const NQN = 'nqn.2024-01.org.example:disk';
export const UUIDS = [
  '11111111-1111-4111-8111-111111111111',
  '22222222-2222-4222-8222-222222222222',
  '33333333-3333-4333-8333-333333333333',
] as const;

const LBADS: Readonly<Record<number, number>> = { 512: 9, 4096: 12 };

export function fakeNamespace(
  blocks = 2048,
  lbaSize: 512 | 4096 = 512,
  uuid: string = UUIDS[0],
): FakeNamespace {
  return { lbaSize, uuid, data: new Uint8Array(blocks * lbaSize) };
}

function nameOf(qid: number, sqe: Uint8Array): string {
  const { opcode, cdw10 } = Sqe.decode(sqe);
  if (opcode === AdminOpcode.fabrics) {
    const { fctype } = FabricsCommand.decode(sqe);
    if (fctype === FabricsType.connect) return `Connect ${ConnectCommand.decode(sqe).qid}`;
    const names: Record<number, string> = Object.fromEntries(
      Object.entries(PropertyOffset).map(([name, offset]) => [offset, name.toUpperCase()]),
    );
    const { ofst } = PropertyGetCommand.decode(sqe);
    const property = names[ofst] ?? String(ofst);
    return `${fctype === FabricsType.propertyGet ? 'Get' : 'Set'} ${property}`;
  }
  if (qid > 0) {
    return Object.entries(IoOpcode).find(([, code]) => code === opcode)?.[0] ?? `io ${opcode}`;
  }
  const admin = Object.entries(AdminOpcode).find(([, code]) => code === opcode)?.[0];
  const detail: Record<number, string> = {
    [AdminOpcode.identify]: ` ${(cdw10 & 0xff).toString(16).padStart(2, '0')}`,
    [AdminOpcode.getLogPage]: ` ${(cdw10 & 0xff).toString(16).padStart(2, '0')}`,
    [AdminOpcode.setFeatures]: ` ${(cdw10 & 0xff).toString(16).padStart(2, '0')}`,
    [AdminOpcode.getFeatures]: ` ${(cdw10 & 0xff).toString(16).padStart(2, '0')}`,
  };
  return `${admin ?? `admin ${opcode}`}${detail[opcode] ?? ''}`;
}

export class FakeController {
  readonly door: FakeDoor;
  readonly log: string[] = [];
  readonly commands: SubmittedCommand[] = [];
  readonly connects: ConnectOptions[] = [];
  readonly namespaces = new Map<number, FakeNamespace>();
  /** Log pages by LID. */
  readonly logs = new Map<number, Uint8Array>();
  readonly #failures = new Map<string, { status: number; result: bigint; times: number }>();
  readonly #held = new Map<Tag, SubmittedCommand>();
  readonly #qids = new Map<QueueId, number>();
  cap: Partial<Cap> = { mqes: 127, cqr: true, to: 15, css: 0x41 };
  cc: Cc | undefined;
  csts: Partial<Csts> = {};
  connectResult: Partial<ConnectResult> = { cntlid: 1 };
  controller: Partial<IdentifyController> = {
    sn: 'SN1',
    mn: 'fake',
    fr: '1',
    cntlid: 1,
    ver: 0x10400,
    mdts: 5,
    cntrltype: 1,
    kas: 10,
    aerl: 3,
    sqes: 0x66,
    cqes: 0x44,
    maxcmd: 128,
    nn: 16,
    mnan: 16,
    sglsSupport: 1,
    sglsKeyed: true,
    sglsInCapsuleOffset: true,
    subnqn: NQN,
    ioccsz: 260,
    iorcsz: 1,
    msdbd: 1,
    vwcPresent: true,
    oaesNamespaceAttribute: true,
    lpaExtendedData: true,
  };
  nvm: Partial<IdentifyNvmController> = {};
  queuesGranted = 128;
  /** Holds back the answer while it returns true; `answer` sends it later. */
  hold: (name: string, command: SubmittedCommand) => boolean = (name) =>
    name === 'asyncEventRequest';
  /** Becomes ready with this many polls of CSTS. */
  readyPolls = 0;
  connectData: ConnectData | undefined;

  constructor(door: FakeDoor) {
    this.door = door;
    this.namespaces.set(1, fakeNamespace());
    door.onConnect = (queue, options) => {
      this.connects.push(options);
      this.#qids.set(queue, viewOf(options.privateData).getUint16(2, true));
      door.emit({
        kind: 'queueEstablished',
        queue,
        responderResources: 0,
        initiatorDepth: 16,
        privateData: new Uint8Array(32),
      });
    };
    door.onSubmit = (command) => {
      this.#receive(command);
    };
    door.onCancel = (queue, tag) => {
      if (this.#held.delete(tag)) this.#complete(queue, tag, 'cancelled', {});
    };
    door.onCloseQueue = (queue) => {
      this.dropQueue(queue, 'closed by us');
    };
  }

  /** Answers all but this command, and events, which come when there are any. */
  stopAt(step: string): void {
    this.hold = (name) => name === step || name === 'asyncEventRequest';
  }

  get heldNames(): string[] {
    return [...this.#held.values()].map((command) => this.nameOf(command));
  }

  nameOf(command: SubmittedCommand): string {
    return nameOf(this.#qids.get(command.queue) ?? 0, command.sqe);
  }

  fail(name: string, status: StatusName | number, result = 0n, times = Infinity): void {
    const field = typeof status === 'number' ? status : STATUS_TABLE[status].value;
    this.#failures.set(name, { status: field, result, times });
  }

  /** Answers the oldest held command of this name, on this queue or any. */
  answer(name: string, answer?: Answer, queue?: QueueId): void {
    for (const [tag, command] of this.#held) {
      if (this.nameOf(command) !== name || (queue ?? command.queue) !== command.queue) continue;
      this.#held.delete(tag);
      this.#reply(command, answer ?? this.#execute(name, command));
      return;
    }
    throw new Error(`no ${name} is held; held are ${this.heldNames.join(', ')}`);
  }

  sendEvent(type: number, info: number, lid: number, queue?: QueueId): void {
    const result = BigInt(type | (info << 8) | (lid << 16));
    this.answer('asyncEventRequest', { result }, queue);
  }

  queueOf(qid: number): QueueId {
    for (const [queue, id] of this.#qids)
      if (id === qid && this.door.queues.has(queue)) return queue;
    throw new Error(`no queue ${qid}`);
  }

  /** The queue's end: its commands die first, as native reports it. */
  dropQueue(queue: QueueId, reason: string): void {
    for (const [tag, command] of this.#held) {
      if (command.queue !== queue) continue;
      this.#held.delete(tag);
      this.#complete(queue, tag, 'queueDied', {});
    }
    this.door.endQueue(queue, reason);
  }

  #receive(command: SubmittedCommand): void {
    const name = this.nameOf(command);
    this.log.push(name);
    this.commands.push(command);
    if (this.hold(name, command)) {
      this.#held.set(command.tag, command);
      return;
    }
    this.#reply(command, this.#execute(name, command));
  }

  #execute(name: string, command: SubmittedCommand): Answer {
    const failure = this.#failures.get(name);
    if (failure && failure.times > 0) {
      failure.times -= 1;
      return { status: failure.status, result: failure.result };
    }
    const { opcode } = Sqe.decode(command.sqe);
    if (opcode === AdminOpcode.fabrics) return this.#fabrics(command);
    if ((this.#qids.get(command.queue) ?? 0) > 0) return this.#io(command);
    switch (opcode) {
      case AdminOpcode.identify:
        return this.#identify(command.sqe);
      case AdminOpcode.getLogPage:
        return this.#logPage(command);
      case AdminOpcode.setFeatures: {
        const { fid } = SetFeaturesCommand.decode(command.sqe);
        const granted = BigInt(this.queuesGranted - 1);
        return fid === 7 ? { result: granted | (granted << 16n) } : {};
      }
      default:
        return {};
    }
  }

  #fabrics({ sqe, data }: SubmittedCommand): Answer {
    const { fctype } = FabricsCommand.decode(sqe);
    if (fctype === FabricsType.connect) {
      this.connectData = ConnectData.decode(data);
      return { result: viewOf(ConnectResult.encode(this.connectResult)).getBigUint64(0, true) };
    }
    if (fctype === FabricsType.propertySet) {
      const { value } = PropertySetCommand.decode(sqe);
      const bytes = new Uint8Array(8);
      viewOf(bytes).setBigUint64(0, value, true);
      this.cc = Cc.decode(bytes);
      if (this.cc.shn !== 0) this.csts = { ...this.csts, shst: 2 };
      if (!this.cc.en) this.csts = { ...this.csts, rdy: false };
      return {};
    }
    const { ofst } = PropertyGetCommand.decode(sqe);
    if (ofst === PropertyOffset.cap) {
      return { result: viewOf(Cap.encode(this.cap)).getBigUint64(0, true) };
    }
    if (ofst === PropertyOffset.vs) return { result: 0x10400n };
    if (ofst === PropertyOffset.csts) {
      if (this.cc?.en === true && this.readyPolls <= 0) this.csts = { ...this.csts, rdy: true };
      if (this.cc?.en === true) this.readyPolls -= 1;
      return { result: BigInt(viewOf(Csts.encode(this.csts)).getUint32(0, true)) };
    }
    return { result: 0n };
  }

  #identify(sqe: Uint8Array): Answer {
    const { cns, nsid } = IdentifyCommand.decode(sqe);
    const namespace = this.namespaces.get(nsid);
    switch (cns) {
      case Cns.controller:
        return { data: IdentifyController.encode(this.controller) };
      case Cns.commandSetController:
        return { data: IdentifyNvmController.encode(this.nvm) };
      case Cns.activeNamespaces: {
        const page = new Uint8Array(4096);
        const nsids = [...this.namespaces.keys()].filter((id) => id > nsid).sort((a, b) => a - b);
        nsids.slice(0, 1024).forEach((id, index) => {
          viewOf(page).setUint32(index * 4, id, true);
        });
        return { data: page };
      }
      case Cns.namespaceDescriptors:
        if (!namespace) return { status: STATUS_TABLE.invalidNamespace.value };
        return {
          data: encodeNamespaceDescriptors([
            { type: DescriptorType.uuid, value: parseUuid(namespace.uuid) },
            { type: DescriptorType.csi, value: Uint8Array.of(0) },
          ]),
        };
      case Cns.namespace: {
        if (!namespace) return { data: new Uint8Array(4096) };
        const blocks = BigInt(namespace.data.length / namespace.lbaSize);
        return {
          data: IdentifyNamespace.encode({
            nsze: blocks,
            ncap: blocks,
            nuse: blocks,
            lbaf: [{ ms: 0, lbads: LBADS[namespace.lbaSize] ?? 9, rp: 0 }],
            ...namespace.identify,
          }),
        };
      }
      default:
        return { status: STATUS_TABLE.invalidField.value };
    }
  }

  #logPage({ sqe, length }: SubmittedCommand): Answer {
    const { lid, lpo } = GetLogPageCommand.decode(sqe);
    const page = this.logs.get(lid);
    if (!page) return { status: STATUS_TABLE.invalidLogPage.value };
    const data = new Uint8Array(length);
    data.set(page.subarray(Number(lpo), Number(lpo) + length));
    return { data };
  }

  #io(command: SubmittedCommand): Answer {
    const { opcode, nsid } = Sqe.decode(command.sqe);
    const namespace = this.namespaces.get(nsid);
    if (!namespace) return { status: STATUS_TABLE.invalidNamespace.value };
    if (opcode === IoOpcode.flush) return {};
    if (opcode === IoOpcode.datasetManagement) return this.#deallocate(command, namespace);
    const { slba, nlb } = BlockCommand.decode(command.sqe);
    const offset = Number(slba) * namespace.lbaSize;
    const length = (nlb + 1) * namespace.lbaSize;
    if (offset + length > namespace.data.length)
      return { status: STATUS_TABLE.lbaOutOfRange.value };
    const blocks = namespace.data.subarray(offset, offset + length);
    switch (opcode) {
      case IoOpcode.read:
        if (command.length !== length) throw new Error(`read of ${length}: room ${command.length}`);
        command.memory?.set(blocks);
        return {};
      case IoOpcode.write:
        if (command.length !== length)
          throw new Error(`write of ${length}: ${command.length} sent`);
        blocks.set(command.data);
        return {};
      case IoOpcode.compare:
        return Buffer.compare(blocks, command.data) === 0
          ? {}
          : { status: STATUS_TABLE.compareFailure.value };
      case IoOpcode.writeZeroes:
        blocks.fill(0);
        return {};
      default:
        return {};
    }
  }

  #deallocate({ sqe, data }: SubmittedCommand, namespace: FakeNamespace): Answer {
    const { nr } = DatasetManagementCommand.decode(sqe);
    if (data.length !== (nr + 1) * 16) throw new Error(`${nr + 1} ranges in ${data.length} bytes`);
    for (let index = 0; index <= nr; index += 1) {
      const { slba, nlb } = DatasetManagementRange.decode(data, index * 16);
      const start = Number(slba) * namespace.lbaSize;
      namespace.data.fill(0, start, start + nlb * namespace.lbaSize);
    }
    return {};
  }

  #reply(command: SubmittedCommand, answer: Answer): void {
    this.#complete(command.queue, command.tag, 'ok', answer);
  }

  #complete(
    queue: QueueId,
    tag: Tag,
    transport: 'ok' | 'queueDied' | 'cancelled',
    { status = 0, result = 0n, data = new Uint8Array() }: Answer,
  ): void {
    this.door.emit({ kind: 'completion', queue, tag, transport, status, result, data });
  }
}
