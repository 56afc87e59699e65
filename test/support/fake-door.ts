/**
 * A door without native code behind it, for unit tests of target and initiator. It hands out handles, records every
 * call, and lets a test (or a scripted peer) answer: assign the `on…` hooks, or send events with `emit`.
 * Events reach the Runtime in a later microtask, as they would after a wake.
 */
import type { Faults } from '../../native/common/faults.ts';
import type {
  AcceptOptions,
  AttachOptions,
  AttachmentId,
  BackingId,
  BackingInfo,
  BackingOptions,
  BenchOptions,
  BenchResult,
  BindOptions,
  BufferId,
  ConnectOptions,
  ConnectionId,
  DataDirection,
  DeviceId,
  DeviceInfo,
  DeviceOptions,
  Door,
  DoorEvent,
  ListenerId,
  NamespaceOptions,
  OperationId,
  PathOptions,
  PathQueueOptions,
  QueueId,
  QueueStatistics,
  ReactorIndex,
  ReactorInfo,
  RuntimeOptions,
  TableId,
  Tag,
} from '../../native/index.ts';
import { Runtime } from '../../native/runtime.ts';
import type { CompletedCommand, DoorCall, SubmittedCommand } from './fake-door-records.ts';
import { FakeLeases } from './fake-leases.ts';
import { FakePathQueue } from './fake-path-queue.ts';
import { systemError } from './system-error.ts';

export { systemError } from './system-error.ts';
export type { CompletedCommand, DoorCall, SubmittedCommand } from './fake-door-records.ts';

export class FakeDoor extends FakeLeases implements Door {
  readonly calls: DoorCall[] = [];
  readonly completed: CompletedCommand[] = [];
  readonly runtime: Runtime;

  readonly attachments = new Set<AttachmentId>();

  onOpenDevice: ((options: DeviceOptions) => void) | undefined;
  onConnect: ((queue: QueueId, options: ConnectOptions) => void) | undefined;
  onSubmit: ((command: SubmittedCommand) => void) | undefined;
  onCancel: ((queue: QueueId, tag: Tag) => void) | undefined;
  onCloseQueue: ((queue: QueueId) => void) | undefined;
  onAccept:
    ((connection: ConnectionId, queue: QueueId, options: AcceptOptions) => void) | undefined;
  onReject: ((connection: ConnectionId, reason: number, data: Uint8Array) => void) | undefined;
  onBind: ((queue: QueueId, options: BindOptions) => void) | undefined;
  onComplete: ((command: CompletedCommand) => void) | undefined;
  onAbort: ((queue: QueueId, cid: number, operation: OperationId) => void) | undefined;
  onOperation: ((name: keyof Door, operation: OperationId) => void) | undefined;
  onOpenBacking: ((options: BackingOptions) => void) | undefined;
  onSetMark: ((backing: BackingId, mark: bigint) => void) | undefined;
  onBench: ((options: BenchOptions) => BenchResult) | undefined;

  started: RuntimeOptions | undefined;
  readonly devices = new Map<DeviceId, DeviceOptions>();
  readonly backings = new Map<BackingId, BackingInfo>();
  /** What we have set, and what a test says that others have. */
  readonly marks = new Map<BackingId, Set<bigint>>();
  readonly marksOfOthers = new Set<bigint>();
  readonly tables = new Map<TableId, Map<number, NamespaceOptions>>();
  readonly listeners = new Map<ListenerId, { readonly device: DeviceId; readonly port: number }>();
  readonly buffers = new Map<BufferId, ArrayBuffer>();
  readonly queues = new Set<QueueId>();
  readonly pathQueues = new Map<QueueId, FakePathQueue>();
  /** Tags that a queue over several paths gave on, to itself. */
  readonly #forwarded = new Map<Tag, FakePathQueue>();
  #nextHandle = 1;

  constructor() {
    super();
    this.runtime = new Runtime(this);
  }

  /** Delivers an event in a later microtask, after those emitted before it. */
  emit(event: DoorEvent): void {
    if (this.tooLate(event)) return;
    queueMicrotask(() => {
      const forwarded = event.kind === 'completion' ? this.#forwarded.get(event.tag) : undefined;
      if (forwarded && event.kind === 'completion') {
        this.#forwarded.delete(event.tag);
        forwarded.cameBack(event);
      } else {
        this.runtime.dispatch(event);
      }
    });
  }

  /** For a queue over several paths: its command on one of them. */
  forward(from: FakePathQueue, command: SubmittedCommand): void {
    this.#forwarded.set(command.tag, from);
    this.onSubmit?.(command);
  }

  callsOf(name: keyof Door): readonly DoorCall[] {
    return this.calls.filter((call) => call.name === name);
  }

  start(options: RuntimeOptions): void {
    this.#record('start', options);
    this.started = options;
  }

  stop(): void {
    this.#record('stop');
    this.started = undefined;
  }

  drain(): number {
    return 0;
  }

  reactors(): readonly ReactorInfo[] {
    const idle = { busyNs: 0n, idleNs: 0n, cpuNs: 0n, queues: 0 };
    return (this.started?.cores ?? [-1]).map((core, index) => ({ index, core, ...idle }));
  }

  queueStatistics = (): readonly QueueStatistics[] => [];

  counters(): Readonly<Record<string, number>> {
    return { 'live.queuePairs': this.queues.size, 'live.buffers': this.buffers.size };
  }

  openDevice(options: DeviceOptions): DeviceId {
    this.#record('openDevice', options);
    this.onOpenDevice?.(options);
    const id = this.#handle();
    this.devices.set(id, options);
    return id;
  }

  deviceInfo(device: DeviceId): DeviceInfo {
    const options = this.devices.get(device);
    if (!options) throw systemError('ENODEV', `no device ${device}`);
    return {
      provider: 'soft',
      rdmaDevice: '',
      fabric: 'rocev2',
      address: options.address,
      pathMtu: options.pathMtu ?? 1024,
      receiveBufferBytes: 212_992,
      gso: true,
      gro: true,
      maxResponderResources: 16,
      maxInitiatorDepth: 16,
    };
  }

  closeDevice(device: DeviceId): void {
    this.#record('closeDevice', device);
    if (!this.devices.delete(device)) throw systemError('ENODEV', `no device ${device}`);
  }

  setFaults(device: DeviceId, faults: Faults): void {
    this.#record('setFaults', device, faults);
    const options = this.devices.get(device);
    if (!options) throw systemError('ENODEV', `no device ${device}`);
    if (options.faultInjection !== true) throw systemError('EPERM', 'not opened for faults');
  }

  openBacking(options: BackingOptions): Promise<BackingId> {
    this.#record('openBacking', options);
    try {
      this.onOpenBacking?.(options);
    } catch (error) {
      return Promise.reject(error instanceof Error ? error : new Error(String(error)));
    }
    const id = this.#handle();
    this.backings.set(id, {
      kind: options.kind,
      size: options.size ?? 1n << 20n,
      blockSize: options.blockSize,
      readOnly: options.readOnly ?? false,
      volatileWriteCache: options.kind === 'file' && options.cache !== 'write-through',
      canDeallocate: options.kind !== 'null',
      marks: options.kind === 'file' && options.shared === true && options.readOnly !== true,
      description: `${options.kind} ${options.path ?? ''}`,
    });
    return Promise.resolve(id);
  }

  backingInfo(backing: BackingId): BackingInfo {
    const info = this.backings.get(backing);
    if (!info) throw systemError('ENOENT', `no backing ${backing}`);
    return info;
  }

  resizeBacking(backing: BackingId, size: bigint): Promise<void> {
    this.#record('resizeBacking', backing, size);
    this.backings.set(backing, { ...this.backingInfo(backing), size });
    return Promise.resolve();
  }

  closeBacking(backing: BackingId): Promise<void> {
    this.#record('closeBacking', backing);
    this.marks.delete(backing);
    this.backings.delete(backing);
    return Promise.resolve();
  }

  setMark(backing: BackingId, mark: bigint, on: boolean): void {
    this.#record('setMark', backing, mark, on);
    if (!this.backingInfo(backing).marks) throw systemError('ENOTSUP', 'takes no marks');
    if (on) this.onSetMark?.(backing, mark);
    const marks = this.marks.get(backing) ?? new Set();
    this.marks.set(backing, marks);
    if (on) marks.add(mark);
    else marks.delete(mark);
  }

  markedElsewhere(backing: BackingId, mark: bigint): boolean {
    if (!this.backingInfo(backing).marks) throw systemError('ENOTSUP', 'takes no marks');
    return this.marksOfOthers.has(mark);
  }

  createTable(): TableId {
    this.#record('createTable');
    const id = this.#handle();
    this.tables.set(id, new Map());
    return id;
  }

  setNamespace(table: TableId, nsid: number, options: NamespaceOptions): OperationId {
    this.#record('setNamespace', table, nsid, options);
    this.tables.get(table)?.set(nsid, options);
    return this.#operation('setNamespace');
  }

  removeNamespace(table: TableId, nsid: number): OperationId {
    this.#record('removeNamespace', table, nsid);
    this.tables.get(table)?.delete(nsid);
    return this.#operation('removeNamespace');
  }

  destroyTable(table: TableId): OperationId {
    this.#record('destroyTable', table);
    this.tables.delete(table);
    return this.#operation('destroyTable');
  }

  setAccess(table: TableId, port: number, group: number, status: number): OperationId {
    this.#record('setAccess', table, port, group, status);
    return this.#operation('setAccess');
  }

  listen(device: DeviceId, port: number): ListenerId {
    this.#record('listen', device, port);
    const id = this.#handle();
    this.listeners.set(id, { device, port });
    return id;
  }

  unlisten(listener: ListenerId): void {
    this.#record('unlisten', listener);
    this.listeners.delete(listener);
  }

  accept(connection: ConnectionId, options: AcceptOptions): QueueId {
    this.#record('accept', connection, options);
    const queue = this.#handle();
    this.queues.add(queue);
    this.onAccept?.(connection, queue, options);
    return queue;
  }

  reject(connection: ConnectionId, reason: number, privateData: Uint8Array): void {
    this.#record('reject', connection, reason, privateData);
    this.onReject?.(connection, reason, privateData);
  }

  bindQueue(queue: QueueId, options: BindOptions): void {
    this.#record('bindQueue', queue, options);
    this.onBind?.(queue, options);
  }

  complete(queue: QueueId, tag: Tag, result: bigint, status: number, data?: Uint8Array): void {
    this.#record('complete', queue, tag, result, status, data);
    const command = { queue, tag, result, status, data: data && Uint8Array.from(data) };
    this.completed.push(command);
    this.onComplete?.(command);
  }

  abort(queue: QueueId, cid: number): OperationId {
    this.#record('abort', queue, cid);
    if (!this.onAbort) return this.#operation('abort');
    const operation = this.#handle();
    this.onAbort(queue, cid, operation);
    return operation;
  }

  connect(device: DeviceId, options: ConnectOptions): QueueId {
    this.#record('connect', device, options);
    const queue = this.#handle();
    this.queues.add(queue);
    this.onConnect?.(queue, options);
    return queue;
  }

  submit(
    queue: QueueId,
    sqe: Uint8Array,
    direction: DataDirection,
    data: Uint8Array | number,
  ): Tag {
    const copy = typeof data === 'number' ? new Uint8Array() : Uint8Array.from(data);
    const length = typeof data === 'number' ? data : data.byteLength;
    return this.#submit('submit', queue, sqe, direction, copy, length, undefined);
  }

  submitBuffer(
    queue: QueueId,
    sqe: Uint8Array,
    direction: DataDirection,
    buffer: BufferId,
    offset: number,
    length: number,
  ): Tag {
    const memory = this.buffers.get(buffer);
    if (!memory) throw systemError('EINVAL', `no buffer ${buffer}`);
    const bytes = new Uint8Array(memory, offset, length);
    const copy = direction === 'toController' ? Uint8Array.from(bytes) : new Uint8Array();
    return this.#submit('submitBuffer', queue, sqe, direction, copy, length, bytes);
  }

  openPathQueue(reactor: ReactorIndex, options: PathQueueOptions): QueueId {
    this.#record('openPathQueue', reactor, options);
    const queue = this.#handle();
    this.queues.add(queue);
    this.pathQueues.set(queue, new FakePathQueue(queue, this));
    return queue;
  }

  configurePathQueue(queue: QueueId, options: PathQueueOptions): void {
    this.#record('configurePathQueue', queue, options);
  }

  setPath(queue: QueueId, path: number, options: PathOptions): void {
    this.#record('setPath', queue, path, options);
    this.pathQueues.get(queue)?.set(path, options);
  }

  removePath(queue: QueueId, path: number): OperationId {
    this.#record('removePath', queue, path);
    this.pathQueues.get(queue)?.remove(path);
    return this.#operation('removePath');
  }

  releasePath(queue: QueueId, path: number, incarnation: number, repeat: boolean): void {
    this.#record('releasePath', queue, path, incarnation, repeat);
  }

  setPathsFailing(queue: QueueId, failing: boolean): void {
    this.#record('setPathsFailing', queue, failing);
    this.pathQueues.get(queue)?.setFailing(failing);
  }

  cancel(queue: QueueId, tag: Tag): void {
    this.#record('cancel', queue, tag);
    this.onCancel?.(queue, tag);
  }

  allocateBuffer(
    device: DeviceId,
    bytes: number,
  ): { readonly id: BufferId; readonly memory: ArrayBuffer } {
    this.#record('allocateBuffer', device, bytes);
    const id = this.#handle();
    const memory = new ArrayBuffer(bytes);
    this.buffers.set(id, memory);
    return { id, memory };
  }

  /** Submissions are handed over at once. */
  flush(): void {
    return;
  }

  freeBuffer(buffer: BufferId): void {
    this.#record('freeBuffer', buffer);
    if (!this.buffers.delete(buffer)) throw systemError('EINVAL', `no buffer ${buffer}`);
  }

  bench(options: BenchOptions): Promise<BenchResult> {
    this.#record('bench', options);
    if (!this.onBench) return Promise.reject(new Error('FakeDoor: no onBench'));
    return Promise.resolve(this.onBench(options));
  }

  attach(options: AttachOptions): AttachmentId {
    this.#record('attach', options);
    const id = this.#handle();
    this.attachments.add(id);
    return id;
  }

  serveNbd(attachment: AttachmentId, path: string, description: string): void {
    this.#record('serveNbd', attachment, path, description);
    if (!this.attachments.has(attachment)) throw systemError('ENOENT', `no ${attachment}`);
  }

  serveClients(attachment: AttachmentId, path: string): void {
    this.#record('serveClients', attachment, path);
    if (!this.attachments.has(attachment)) throw systemError('ENOENT', `no ${attachment}`);
  }

  detach(attachment: AttachmentId): Promise<void> {
    this.#record('detach', attachment);
    const known = this.attachments.delete(attachment);
    return known
      ? Promise.resolve()
      : Promise.reject(systemError('ENOENT', `no attachment ${attachment}`));
  }

  /** Without a hook the queue closes at once. */
  closeQueue(queue: QueueId): void {
    this.#record('closeQueue', queue);
    if (this.onCloseQueue) this.onCloseQueue(queue);
    else this.endQueue(queue, 'closed by us');
  }

  /** A queue that ends has nothing in a backing any more; without this the end says so. */
  quietQueue(queue: QueueId): void {
    this.emit({ kind: 'queueQuiet', queue });
  }

  /** The last event of a queue. */
  endQueue(queue: QueueId, reason: string): void {
    if (!this.queues.delete(queue)) return;
    this.pathQueues.get(queue)?.close();
    this.pathQueues.delete(queue);
    this.emit({ kind: 'queueClosed', queue, reason });
    for (const overPaths of this.pathQueues.values()) overPaths.queueGone(queue);
  }

  notifyService(socket: string, state: string): void {
    this.#record('notifyService', socket, state);
  }

  /** The end of a change, for tests that hold it back with `onOperation`. */
  endOperation(operation: OperationId, error = 0, value = 0, message = ''): void {
    this.emit({ kind: 'operationDone', operation, error, value, message });
  }

  #submit(
    name: 'submit' | 'submitBuffer',
    queue: QueueId,
    sqe: Uint8Array,
    direction: DataDirection,
    data: Uint8Array,
    length: number,
    memory: Uint8Array | undefined,
  ): Tag {
    const tag = this.#handle();
    const command = { queue, tag, sqe: Uint8Array.from(sqe), direction, data, length, memory };
    this.#record(name, command);
    const overPaths = this.pathQueues.get(queue);
    if (overPaths && this.queues.has(queue)) {
      overPaths.submit(command);
    } else if (this.queues.has(queue)) {
      this.onSubmit?.(command);
    } else {
      const nothing = { status: 0, result: 0n, data: new Uint8Array() };
      this.emit({ kind: 'completion', queue, tag, transport: 'queueDied', ...nothing });
    }
    return tag;
  }

  #operation(name: keyof Door): OperationId {
    const operation = this.#handle();
    if (this.onOperation) this.onOperation(name, operation);
    else this.endOperation(operation);
    return operation;
  }

  #handle(): number {
    return this.#nextHandle++;
  }

  #record(name: keyof Door, ...args: readonly unknown[]): void {
    this.calls.push({ name, args });
  }
}
