/** Wrong uses of the door's functions, and how each is refused. */
import type { Door } from '../../native/index.ts';
import { ACCEPT, ATTACH, BENCH, CONNECT, NO_ID, PATH_QUEUE } from './door-options.ts';

const SQE = new Uint8Array(64);
const NOTHING = new Uint8Array();

export interface Wrong {
  readonly args: readonly unknown[];
  /** A TypeError or RangeError by name, or an errno by `code`. */
  readonly error: string;
  readonly message: RegExp;
}

/** At least one wrong use of every function, with a runtime that runs and has no device. */
export const WRONG: Readonly<Record<keyof Door, readonly Wrong[]>> = {
  start: [{ args: [{}], error: 'EALREADY', message: /runs already/ }],
  stop: [],
  flush: [],
  drain: [
    { args: [new Uint8Array(64)], error: 'RangeError', message: /drain: into must be/ },
    { args: [new Uint16Array(1 << 20)], error: 'TypeError', message: /a Uint8Array/ },
    { args: [null], error: 'TypeError', message: /a Uint8Array/ },
  ],
  reactors: [],
  counters: [],
  queueStatistics: [],
  openDevice: [
    { args: ['soft'], error: 'TypeError', message: /options must be an object/ },
    { args: [{ provider: 'magic', address: '127.0.0.1' }], error: 'TypeError', message: /'soft'/ },
    { args: [{ provider: 'auto', address: 'localhost' }], error: 'EINVAL', message: /numeric/ },
    { args: [{ provider: 'auto', address: '127.0.0.1\0' }], error: 'TypeError', message: /NUL/ },
    {
      args: [{ provider: 'auto', address: '127.0.0.1', pathMtu: 1500 }],
      error: 'RangeError',
      message: /options.pathMtu must be 0, 256/,
    },
    {
      args: [{ provider: 'soft', address: '192.0.2.1' }],
      error: 'EADDRNOTAVAIL',
      message: /192\.0\.2\.1/,
    },
  ],
  deviceInfo: [{ args: [NO_ID], error: 'ENOENT', message: /no device 4000000000/ }],
  closeDevice: [
    { args: [NO_ID], error: 'ENOENT', message: /no device/ },
    { args: [1.5], error: 'TypeError', message: /device must be an integer/ },
    { args: [-1], error: 'RangeError', message: /from 0 to 4294967295/ },
    { args: [Number.NaN], error: 'TypeError', message: /an integer/ },
  ],
  setFaults: [
    { args: [NO_ID, { rules: [] }], error: 'ENOENT', message: /no device/ },
    { args: [1.5, { rules: [] }], error: 'TypeError', message: /device must be an integer/ },
  ],
  openBacking: [
    { args: [{ kind: 'tape' }], error: 'TypeError', message: /kind must be one of 'file'/ },
    {
      args: [{ kind: 'null', size: 1, blockSize: 512 }],
      error: 'TypeError',
      message: /size must be a bigint/,
    },
    {
      args: [{ kind: 'null', size: -1n, blockSize: 512 }],
      error: 'RangeError',
      message: /options.size/,
    },
    {
      args: [{ kind: 'null', size: 512n, blockSize: 520 }],
      error: 'RangeError',
      message: /512 or 4096/,
    },
  ],
  backingInfo: [{ args: [NO_ID], error: 'ENOENT', message: /no backing/ }],
  resizeBacking: [{ args: [NO_ID, 1n], error: 'ENOENT', message: /no backing/ }],
  setMark: [{ args: [NO_ID, 1n, true], error: 'ENOENT', message: /no backing/ }],
  markedElsewhere: [{ args: [NO_ID, 1n], error: 'ENOENT', message: /no backing/ }],
  closeBacking: [{ args: [NO_ID], error: 'ENOENT', message: /no backing/ }],
  createTable: [],
  setNamespace: [
    {
      args: [NO_ID, 1, { backing: 1, writeProtected: false, maxTransferBytes: 4096, anaGroup: 1 }],
      error: 'ENOENT',
      message: /no table/,
    },
  ],
  removeNamespace: [{ args: [NO_ID, 1], error: 'ENOENT', message: /no table/ }],
  destroyTable: [{ args: [NO_ID], error: 'ENOENT', message: /no table/ }],
  setAccess: [{ args: [NO_ID, 1, 1, 0x302], error: 'ENOENT', message: /no table/ }],
  listen: [
    { args: [NO_ID, 4420], error: 'ENOENT', message: /no device/ },
    { args: [NO_ID, 0], error: 'RangeError', message: /port must be/ },
  ],
  unlisten: [{ args: [NO_ID], error: 'ENOENT', message: /no listener/ }],
  accept: [
    { args: [1, ACCEPT], error: 'TypeError', message: /connection must be a bigint/ },
    { args: [1n, ACCEPT], error: 'ENOENT', message: /no connection request 1/ },
    { args: [1n, { ...ACCEPT, reactor: 9 }], error: 'RangeError', message: /options.reactor/ },
    {
      args: [1n, { ...ACCEPT, privateData: new Uint8Array(197) }],
      error: 'RangeError',
      message: /privateData must be from 0 to 196 bytes/,
    },
  ],
  reject: [
    { args: [1n, 28, NOTHING], error: 'ENOENT', message: /no connection request/ },
    { args: [1n, 70_000, NOTHING], error: 'RangeError', message: /reason/ },
  ],
  openLease: [],
  renewLeaseBy: [{ args: [NO_ID, NO_ID], error: 'ENOENT', message: /no lease/ }],
  setLease: [
    { args: [NO_ID, 1000], error: 'ENOENT', message: /no lease/ },
    { args: [NO_ID, -1], error: 'ENOENT', message: /no lease/ },
  ],
  leaseLeft: [{ args: [NO_ID], error: 'ENOENT', message: /no lease/ }],
  closeLease: [{ args: [NO_ID], error: 'ENOENT', message: /no lease/ }],
  bindQueue: [
    {
      args: [1, { table: NO_ID, qid: 1, flowControlDisabled: false, cntlid: 1, port: 1, lease: 1 }],
      error: 'ENOENT',
      message: /no table/,
    },
  ],
  complete: [
    { args: [NO_ID, 1, 0n, 0], error: 'ENOENT', message: /no queue/ },
    { args: [NO_ID, 1, 0, 0], error: 'TypeError', message: /result must be a bigint/ },
    { args: [NO_ID, 1, 0n, 0x8000], error: 'RangeError', message: /status/ },
    { args: [NO_ID, 1, 0n, 0, 'data'], error: 'TypeError', message: /data must be/ },
  ],
  abort: [{ args: [NO_ID, 1], error: 'ENOENT', message: /no queue/ }],
  connect: [{ args: [NO_ID, CONNECT], error: 'ENOENT', message: /no device/ }],
  submit: [
    { args: [NO_ID, SQE, 'none', 0], error: 'ENOENT', message: /no queue/ },
    {
      args: [NO_ID, new Uint8Array(63), 'none', 0],
      error: 'RangeError',
      message: /sqe must be 64/,
    },
    { args: [NO_ID, SQE, 'up', 0], error: 'TypeError', message: /direction must be one of/ },
    { args: [NO_ID, SQE, 'toController', 512], error: 'TypeError', message: /data must be/ },
    { args: [NO_ID, SQE, 'none', 512], error: 'RangeError', message: /command without data/ },
    { args: [NO_ID, SQE, 'toHost', 2 ** 21], error: 'RangeError', message: /1048576/ },
  ],
  submitBuffer: [
    { args: [NO_ID, SQE, 'none', NO_ID, 0, 0], error: 'ENOENT', message: /no buffer/ },
  ],
  cancel: [{ args: [NO_ID, 1], error: 'ENOENT', message: /no queue/ }],
  allocateBuffer: [{ args: [NO_ID, 4096], error: 'ENOENT', message: /no device/ }],
  freeBuffer: [{ args: [NO_ID], error: 'ENOENT', message: /no buffer/ }],
  bench: [
    { args: [{ ...BENCH, queues: [] }], error: 'RangeError', message: /queues must be a list/ },
    { args: [BENCH], error: 'ENOENT', message: /no queue/ },
  ],
  attach: [
    { args: [{ ...ATTACH, queues: [] }], error: 'RangeError', message: /queues must be a list/ },
    { args: [{ ...ATTACH, depth: 0 }], error: 'RangeError', message: /depth must be/ },
    { args: [ATTACH], error: 'ENOENT', message: /no queue/ },
  ],
  serveClients: [{ args: [NO_ID, '/tmp/none'], error: 'ENOENT', message: /no attachment/ }],
  serveNbd: [{ args: [NO_ID, '/tmp/none', ''], error: 'ENOENT', message: /no attachment/ }],
  detach: [{ args: [NO_ID], error: 'ENOENT', message: /no attachment/ }],
  closeQueue: [{ args: [NO_ID], error: 'ENOENT', message: /no queue/ }],
  notifyService: [
    { args: ['', 'READY=1'], error: 'TypeError', message: /socket must be an absolute path, or @/ },
    { args: ['run/notify', 'READY=1'], error: 'TypeError', message: /socket must be an absolute/ },
    { args: [`/${'x'.repeat(200)}`, 'READY=1'], error: 'RangeError', message: /at most 107 bytes/ },
    { args: ['/nonexistent/notify', ''], error: 'RangeError', message: /state must be 1 to 4096/ },
    { args: ['/nonexistent/notify', 'READY=1'], error: 'ENOENT', message: /nonexistent/ },
    { args: ['@nvmeof-test-nobody', 'READY=1'], error: 'ECONNREFUSED', message: /nobody/ },
  ],
  openPathQueue: [
    { args: [9, PATH_QUEUE], error: 'RangeError', message: /reactor must be/ },
    {
      args: [0, { ...PATH_QUEUE, policy: 'best' }],
      error: 'TypeError',
      message: /options.policy must be one of 'round-robin'/,
    },
    {
      args: [0, { ...PATH_QUEUE, retryDelaysMs: [1, 2, 3, 4] }],
      error: 'RangeError',
      message: /retryDelaysMs must be a list of 1 to 3/,
    },
  ],
  configurePathQueue: [{ args: [NO_ID, PATH_QUEUE], error: 'ENOENT', message: /no queue/ }],
  setPath: [
    {
      args: [NO_ID, 0, { queue: NO_ID, rank: 0, distance: 0, incarnation: 1 }],
      error: 'ENOENT',
      message: /no queue/,
    },
    {
      args: [NO_ID, 16, { queue: NO_ID, rank: 0, distance: 0, incarnation: 1 }],
      error: 'RangeError',
      message: /path must be an integer from 0 to 15/,
    },
    {
      args: [NO_ID, 0, { queue: NO_ID, rank: 256, distance: 0, incarnation: 1 }],
      error: 'RangeError',
      message: /options.rank/,
    },
  ],
  removePath: [{ args: [NO_ID, 0], error: 'ENOENT', message: /no queue/ }],
  releasePath: [
    { args: [NO_ID, 0, 1, true], error: 'ENOENT', message: /no queue/ },
    { args: [NO_ID, 0, 1, 1], error: 'TypeError', message: /repeat/ },
  ],
  setPathsFailing: [{ args: [NO_ID, true], error: 'ENOENT', message: /no queue/ }],
};
