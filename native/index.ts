/**
 * The door. It declares every call, handle and event that crosses between TypeScript and the native data path. Handles
 * are small integers; JavaScript never sees an address.
 *
 * Calls only post to reactors and return at once; what they cause comes back as events. Native keeps the events in a
 * ring and wakes JavaScript once for a batch; `drain` hands over the lot. `Door` is an interface, so that tests can
 * pass a fake edge.
 */
import type { Faults } from './common/faults.ts';
import type { LeaseDoor, LeaseId } from './leases.ts';

export { doorPath, loadDoor } from './load-door.ts';
export type { ConnectFailure, DoorEvent } from './door-events.ts';
export type { LeaseDoor, LeaseId } from './leases.ts';

export type ReactorIndex = number;
export type DeviceId = number;
/** In place of a device, where something belongs to queues over several paths. */
export const MULTIPATH: DeviceId = 0;
export type ListenerId = number;
/** A connection request that waits for accept or reject. */
export type ConnectionId = bigint;
export type QueueId = number;
export type TableId = number;
export type BackingId = number;
export type BufferId = number;
/** A namespace that other processes use through this one. */
export type AttachmentId = number;
/** Names one command that native handed up, or that JavaScript submitted; unique per queue while it lives. */
export type Tag = number;
/** Names a change whose end is reported by an `operationDone` event. */
export type OperationId = number;

export interface RuntimeOptions {
  /** One reactor per entry: the core it is pinned to, or -1 for none. */
  readonly cores: readonly number[];
  /** Never sleep (servers); default false: spin a little, then sleep. */
  readonly pollForever?: boolean;
  /** Called once for a batch of events; call `drain` until it returns 0. */
  readonly onWake: () => void;
}

/** How the soft provider checks the ICRC of IPv4 packets (docs/architecture.md). */
export type IcrcCheck = 'recovered' | 'full';

export interface DeviceOptions {
  readonly provider: 'auto' | 'soft' | 'verbs';
  /** Numeric IPv4 or IPv6 address of this host (zone allowed: fe80::1%eth0). */
  readonly address: string;
  /** 256, 512, 1024, 2048, 4096; 0: what the interface carries. */
  readonly pathMtu?: number;
  readonly socketBufferBytes?: number;
  readonly pcapPath?: string;
  /** Of IPv4 on soft. 'full' sees IP headers through a raw socket and needs CAP_NET_RAW; default 'recovered'. */
  readonly icrc?: IcrcCheck;
  /** `setFaults` may be called for it. Default false. */
  readonly faultInjection?: boolean;
  /** 4.096 µs × 2^n; 0, the default, is the provider's choice: 14 on soft, the kernel's on verbs. */
  readonly localAckTimeout?: number;
  readonly connectTimeoutMs?: number;
  /** Largest in-capsule data any listener on this device offers; receive buffers are sized for it. Default 4096. */
  readonly inCapsuleBytesMax?: number;
}

export interface DeviceInfo {
  readonly provider: 'soft' | 'verbs';
  /** Such as mlx5_0; empty: the soft provider needs none. */
  readonly rdmaDevice: string;
  readonly fabric: 'rocev2' | 'infiniband' | 'iwarp';
  readonly address: string;
  readonly pathMtu: number;
  readonly receiveBufferBytes: number;
  readonly gso: boolean;
  readonly gro: boolean;
  readonly maxResponderResources: number;
  readonly maxInitiatorDepth: number;
}

export interface BackingOptions {
  readonly kind: 'file' | 'block' | 'memory' | 'null';
  readonly path?: string;
  /** Bytes; for a file 0 or absent means its size. */
  readonly size?: bigint;
  readonly blockSize: 512 | 4096;
  readonly readOnly?: boolean;
  readonly shared?: boolean;
  readonly cache?: 'write-back' | 'write-through' | 'direct';
  /** For tests of failover: every write is held that long before it reaches the backing. */
  readonly delayWritesMs?: number;
}

export interface BackingInfo {
  readonly kind: BackingOptions['kind'];
  readonly size: bigint;
  readonly blockSize: number;
  readonly readOnly: boolean;
  readonly volatileWriteCache: boolean;
  readonly canDeallocate: boolean;
  /** Whether `setMark` tells everybody who can write there: a shared, writable file on a local file system. */
  readonly marks: boolean;
  readonly description: string;
}

/** How a target takes a connection: one NVMe queue on one reactor. */
export interface AcceptOptions {
  readonly reactor: ReactorIndex;
  /** Submission queue entries (HSQSIZE + 1). */
  readonly depth: number;
  /** Data bytes a command capsule may carry besides its 64-byte SQE. */
  readonly inCapsuleBytes: number;
  /** Our answer's RDMA parameters and NVMe private data (32 bytes). */
  readonly responderResources: number;
  readonly initiatorDepth: number;
  readonly privateData: Uint8Array;
}

/** Makes a connected target queue an I/O queue: from now on native runs the I/O table itself. */
export interface BindOptions {
  readonly table: TableId;
  readonly qid: number;
  /** SQ flow control off (Connect CATTR bit 2): SQHD is not reported. */
  readonly flowControlDisabled: boolean;
  /** Controller's id for counters and logs. */
  readonly cntlid: number;
  /** The port it came in at, as `setAccess` names it. */
  readonly port: number;
  /** Of its controller: it changes data only while this holds. */
  readonly lease: LeaseId;
}

export interface NamespaceOptions {
  readonly backing: BackingId;
  readonly writeProtected: boolean;
  /** Largest transfer, bytes (MDTS). */
  readonly maxTransferBytes: number;
  /** 1 to 128. */
  readonly anaGroup: number;
}

export interface ConnectOptions {
  readonly reactor: ReactorIndex;
  readonly address: string;
  readonly port: number;
  readonly depth: number;
  /** Data bytes that the target takes in a command capsule of this queue. */
  readonly inCapsuleBytes: number;
  readonly responderResources: number;
  readonly initiatorDepth: number;
  readonly privateData: Uint8Array;
  readonly timeoutMs: number;
  /** Its commands are answered soon: a controller that is silent meanwhile is asked whether it lives (soft). Default false. */
  readonly probes?: boolean;
}

export type DataDirection = 'none' | 'toController' | 'toHost';

export interface BenchOptions {
  /** Connected and bound I/O queues; each runs `queueDepth` commands. */
  readonly queues: readonly QueueId[];
  readonly nsid: number;
  readonly pattern: 'read' | 'write' | 'randread' | 'randwrite' | 'rw' | 'randrw';
  /** Percentage of reads in a mix. */
  readonly readPercent: number;
  readonly blockBytes: number;
  readonly queueDepth: number;
  readonly lbaBytes: number;
  readonly firstLba: bigint;
  readonly lbaCount: bigint;
  /** 0: stop by `commandCount`. */
  readonly runtimeMs: number;
  readonly commandCount: bigint;
  readonly warmupMs: number;
  /** A command without an answer for that long is given up, and ends the run with `firstError`; 0: never. */
  readonly commandTimeoutMs: number;
  /** Fill writes with a pattern derived from LBA and generation, and check every read against it. */
  readonly verify: boolean;
  readonly bufferArenaBytes: number;
  readonly seed: bigint;
}

/** How a queue over several paths chooses among the paths of the best rank. */
export type PathPolicy = 'round-robin' | 'queue-depth' | 'numa';

/** Paths of one such queue: their indices are below this. */
export const PATHS_MAX = 16;
/** The rank of a path that no command may take. */
export const RANK_UNUSABLE = 255;

export interface PathQueueOptions {
  readonly policy: PathPolicy;
  /** A command without an answer for so long makes its path overdue (`pathOverdue`); 0: never. */
  readonly ioTimeoutMs: number;
  /** CRDT 1 to 3: how long an error with that Command Retry Delay waits for its next attempt; 0: not. */
  readonly retryDelaysMs: readonly [number, number, number];
}

export interface PathOptions {
  /** A connected and bound I/O queue, of this reactor or another. */
  readonly queue: QueueId;
  /** Lower is better; RANK_UNUSABLE: commands that are there may end, none is sent. */
  readonly rank: number;
  /** Of NUMA nodes, 0 to 255. */
  readonly distance: number;
  /** Of the path's associations: each a higher one. */
  readonly incarnation: number;
}

/** What the controller says of a namespace and of commands on it; a limit of 0 is none. */
export interface AttachGeometry {
  readonly nsid: number;
  readonly lbaBytes: number;
  readonly lbaCount: bigint;
  /** Data of one command, a multiple of `lbaBytes`. */
  readonly transferBytesMax: number;
  readonly writeZeroesBlocksMax: bigint;
  readonly discardBlocksMax: bigint;
  readonly readOnly: boolean;
  readonly writeZeroes: boolean;
  readonly deallocate: boolean;
  readonly volatileWriteCache: boolean;
}

export interface AttachOptions {
  /** Connected and bound I/O queues of one controller, or queues over several paths; the first on each reactor is used. */
  readonly queues: readonly QueueId[];
  /** Commands in flight on each of them, at most. */
  readonly depth: number;
  /** A command without an answer for so long is given up; 0: never. */
  readonly commandTimeoutMs: number;
  readonly geometry: AttachGeometry;
}

/** One direction's figures; times in ns. */
export interface BenchSide {
  readonly commands: bigint;
  readonly bytes: bigint;
  readonly errors: bigint;
  readonly runtimeNs: bigint;
  readonly latencyMin: bigint;
  readonly latencyMax: bigint;
  readonly latencyMean: number;
  readonly latencyStddev: number;
  /** Pairs [percentile, ns]: 1, 5, 10, 20 … 90, 95, 99, 99.5, 99.9, 99.95, 99.99. */
  readonly percentiles: readonly (readonly [number, bigint])[];
}

export interface BenchResult {
  readonly read: BenchSide;
  readonly write: BenchSide;
  readonly verifyErrors: bigint;
  /** Logical blocks whose content was compared. */
  readonly blocksVerified: bigint;
  /** Commands given up, among the errors of both sides. */
  readonly overdue: bigint;
  /** First mismatch or failing command, for a person; empty when none. */
  readonly firstError: string;
  /** CPU seconds of each reactor used, user + system, during the run. */
  readonly reactorCpuSeconds: readonly number[];
}

export interface ReactorInfo {
  readonly index: ReactorIndex;
  readonly core: number;
  readonly busyNs: bigint;
  readonly idleNs: bigint;
  readonly cpuNs: bigint;
  readonly queues: number;
}

/** Of a queue pair, since it was made. */
export interface QueuePairCounters {
  readonly packetsIn: number;
  readonly packetsOut: number;
  readonly acksIn: number;
  readonly acksOut: number;
  /** How often packets left again, by cause: no answer in time, */
  readonly retransmitsTimeout: number;
  /** a packet was missed and the peer said so, */
  readonly retransmitsNak: number;
  /** an answer to a later request came, */
  readonly retransmitsImplied: number;
  /** the peer had no receive. */
  readonly retransmitsNotReady: number;
}

/** Since the queue was bound. */
export interface QueueStatistics {
  readonly queue: QueueId;
  readonly reactor: ReactorIndex;
  readonly reads: number;
  readonly writes: number;
  /** Other I/O commands: flush, write zeroes and so on. */
  readonly others: number;
  readonly errors: number;
  readonly bytesRead: number;
  readonly bytesWritten: number;
  /** Pairs [ns, count]: how many commands took less than this, and not less than the bound before; four bounds per power of two. */
  readonly latency: readonly (readonly [number, number])[];
  /** Absent: the device does not count by queue pair (verbs). */
  readonly transport?: QueuePairCounters | undefined;
}

export interface Door extends LeaseDoor {
  // Runtime: once per process.
  start(options: RuntimeOptions): void;
  stop(): void;
  /**
   * Fills `into` with whole event records; returns the bytes written, 0 when there are none. `into` must hold the
   * largest record (`RECORD_BYTES_MAX` in events.ts). Works after `stop` too: its last events.
   */
  drain(into: Uint8Array): number;
  reactors(): readonly ReactorInfo[];
  /** Flat counters: 'soft.rx.packets', 'live.queuePairs', 'live.windows', 'live.buffers', … */
  counters(): Readonly<Record<string, number>>;

  /**
   * Of every bound I/O queue of a target. Waits for a loop iteration of each reactor that has some: for a look now and then, not for
   * the I/O path.
   */
  queueStatistics(): readonly QueueStatistics[];

  // Devices. Blocking but short: socket set-up. Throws an Error with `code` (EADDRINUSE, EADDRNOTAVAIL, …).
  openDevice(options: DeviceOptions): DeviceId;
  deviceInfo(device: DeviceId): DeviceInfo;
  closeDevice(device: DeviceId): void;
  /** Replaces the faults of the device's packets (common/faults.ts). Waits for a loop iteration of each reactor. */
  setFaults(device: DeviceId, faults: Faults): void;

  // Backings: open and close run on a worker thread.
  openBacking(options: BackingOptions): Promise<BackingId>;
  backingInfo(backing: BackingId): BackingInfo;
  resizeBacking(backing: BackingId, size: bigint): Promise<void>;
  closeBacking(backing: BackingId): Promise<void>;
  /**
   * Marks (native/block/marks.h) are numbers below 2^62 that processes of this machine tell each other through a file they share.
   * A mark goes with `on` false, with the backing, or with the process, but not while a request of this backing is in flight.
   * Throws where the backing has no marks.
   */
  setMark(backing: BackingId, mark: bigint, on: boolean): void;
  /** Whether another process, or another backing of this one, has set it on the same file. */
  markedElsewhere(backing: BackingId, mark: bigint): boolean;

  // Namespace tables: one per subsystem view. Changes end with `operationDone`, when they hold for all I/O and no
  // command of the old entry is in flight.
  createTable(): TableId;
  setNamespace(table: TableId, nsid: number, options: NamespaceOptions): OperationId;
  removeNamespace(table: TableId, nsid: number): OperationId;
  destroyTable(table: TableId): OperationId;
  /**
   * What I/O commands on the namespaces of an ANA group are answered that come in at a port of the caller's numbering: a
   * status (SC | SCT << 8 | DNR), or 0 to run them. Ends when no command that it refuses is in a backing any more; none is
   * cancelled for it.
   */
  setAccess(table: TableId, port: number, group: number, status: number): OperationId;

  // Target queues.
  listen(device: DeviceId, port: number): ListenerId;
  unlisten(listener: ListenerId): void;
  accept(connection: ConnectionId, options: AcceptOptions): QueueId;
  reject(connection: ConnectionId, reason: number, privateData: Uint8Array): void;
  bindQueue(queue: QueueId, options: BindOptions): void;
  /**
   * Ends a command that was handed up. `result` is CQE dwords 0 and 1; `status` as in `ioError`; `data` goes to the
   * host's SGL before the response.
   */
  complete(queue: QueueId, tag: Tag, result: bigint, status: number, data?: Uint8Array): void;
  /** Ends an I/O command by its CID with Command Abort Requested; operationDone.value 1 when it was found. */
  abort(queue: QueueId, cid: number): OperationId;

  // Initiator queues.
  connect(device: DeviceId, options: ConnectOptions): QueueId;
  /**
   * Native fills CID and SGL. `data` is copied out before the call returns; answers are copied into the event. Commands
   * behind the first one since the last `flush` may wait for it: call it when a turn of the event loop ends.
   */
  submit(queue: QueueId, sqe: Uint8Array, direction: DataDirection, data: Uint8Array | number): Tag;
  /** Zero-copy: bytes of a registered buffer. */
  submitBuffer(
    queue: QueueId,
    sqe: Uint8Array,
    direction: DataDirection,
    buffer: BufferId,
    offset: number,
    length: number,
  ): Tag;
  /** Sends what was submitted on its way, as every call but the two above does. */
  flush(): void;
  /**
   * Gives the command up: a `completion` with transport 'cancelled' follows when nothing reaches its memory any more.
   * Its key lives on until the controller answers, at most 2 seconds; then it is ended, and a controller that uses it
   * after that loses the queue. A tag or a queue that has ended meanwhile is no error, here and in `complete`,
   * `bindQueue`, `abort` and `closeQueue`.
   */
  cancel(queue: QueueId, tag: Tag): void;
  // Queues over several paths: commands for one namespace, submitted like those of any queue, go where the best path is.
  // `closeQueue` ends them, too; their commands then end as cancelled.
  openPathQueue(reactor: ReactorIndex, options: PathQueueOptions): QueueId;
  configurePathQueue(queue: QueueId, options: PathQueueOptions): void;
  /** A path that comes, is another association's, or has another rank. What waits for a path takes it. */
  setPath(queue: QueueId, path: number, options: PathOptions): void;
  /** No command goes there any more; done when the last that was there has ended, or lost its queue. */
  removePath(queue: QueueId, path: number): OperationId;
  /**
   * Says that the path's controller executes nothing more of what it was sent up to this incarnation: commands that
   * change data, which were there when it was lost, take another path only now. `repeat` false: they must never be repeated, and
   * end with Host Pathing Error.
   */
  releasePath(queue: QueueId, path: number, incarnation: number, repeat: boolean): void;
  /** Whether commands that find no path fail with Host Pathing Error, now and later, instead of waiting for one. */
  setPathsFailing(queue: QueueId, failing: boolean): void;

  /** `device` MULTIPATH: for queues over several paths. */
  allocateBuffer(
    device: DeviceId,
    bytes: number,
  ): { readonly id: BufferId; readonly memory: ArrayBuffer };
  freeBuffer(buffer: BufferId): void;
  bench(options: BenchOptions): Promise<BenchResult>;

  // Attached namespaces. `attach` and `serveNbd` wait for a loop iteration of each reactor.
  attach(options: AttachOptions): AttachmentId;
  /**
   * Listens on the Unix socket `path`, mode 0600, for clients of the NBD protocol. `description` is shown to them. Throws
   * with `code` EADDRINUSE when a live process listens there.
   */
  serveNbd(attachment: AttachmentId, path: string, description: string): void;
  /** The same for clients over shared memory (native/client), such as fio's engine. */
  serveClients(attachment: AttachmentId, path: string): void;
  /**
   * Takes the sockets away, hangs up on clients and resolves when the last request has ended: when the controller has
   * answered, or its queue has closed. Closing the device does the same.
   */
  detach(attachment: AttachmentId): Promise<void>;

  /** Either side: graceful disconnect; `queueClosed` follows. */
  closeQueue(queue: QueueId): void;

  /**
   * Tells a service manager what became of this service: `state` as in sd_notify(3), to the datagram socket at `socket`, a path or
   * @ and an abstract name. Throws with `code` when nobody listens there.
   */
  notifyService(socket: string, state: string): void;
}

/** Every function of the addon, with the number of arguments it needs. The door test compares both. */
export const DOOR_FUNCTIONS = {
  start: 1,
  stop: 0,
  drain: 1,
  reactors: 0,
  counters: 0,
  queueStatistics: 0,
  openDevice: 1,
  deviceInfo: 1,
  closeDevice: 1,
  setFaults: 2,
  openBacking: 1,
  backingInfo: 1,
  resizeBacking: 2,
  closeBacking: 1,
  setMark: 3,
  markedElsewhere: 2,
  createTable: 0,
  setNamespace: 3,
  removeNamespace: 2,
  destroyTable: 1,
  setAccess: 4,
  listen: 2,
  unlisten: 1,
  accept: 2,
  reject: 3,
  bindQueue: 2,
  openLease: 0,
  renewLeaseBy: 2,
  setLease: 2,
  leaseLeft: 1,
  closeLease: 1,
  complete: 4,
  abort: 2,
  connect: 2,
  submit: 4,
  submitBuffer: 6,
  flush: 0,
  cancel: 2,
  openPathQueue: 2,
  configurePathQueue: 2,
  setPath: 3,
  removePath: 2,
  releasePath: 4,
  setPathsFailing: 2,
  allocateBuffer: 2,
  freeBuffer: 1,
  bench: 1,
  attach: 1,
  serveNbd: 3,
  serveClients: 2,
  detach: 1,
  closeQueue: 1,
  notifyService: 2,
} as const satisfies Readonly<Record<keyof Door, number>>;
