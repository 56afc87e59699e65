/** Options that the door's functions would take, if what they name existed. */
import type {
  AttachOptions,
  BenchOptions,
  ConnectOptions,
  PathQueueOptions,
} from '../../native/index.ts';

/** Never given to anything. */
export const NO_ID = 4_000_000_000;

export const ACCEPT = {
  reactor: 0,
  depth: 32,
  inCapsuleBytes: 4096,
  responderResources: 4,
  initiatorDepth: 4,
  privateData: new Uint8Array(),
};
export const CONNECT: ConnectOptions = {
  ...ACCEPT,
  address: '127.0.0.1',
  port: 4420,
  timeoutMs: 1000,
};
export const BENCH: BenchOptions = {
  queues: [NO_ID],
  nsid: 1,
  pattern: 'randread',
  readPercent: 50,
  blockBytes: 4096,
  queueDepth: 1,
  lbaBytes: 512,
  firstLba: 0n,
  lbaCount: 8n,
  runtimeMs: 10,
  commandCount: 0n,
  warmupMs: 0,
  commandTimeoutMs: 0,
  verify: false,
  bufferArenaBytes: 4096,
  seed: 1n,
};

export const ATTACH: AttachOptions = {
  queues: [NO_ID],
  depth: 127,
  commandTimeoutMs: 30_000,
  geometry: {
    nsid: 1,
    lbaBytes: 512,
    lbaCount: 8n,
    transferBytesMax: 4096,
    writeZeroesBlocksMax: 0n,
    discardBlocksMax: 0n,
    readOnly: false,
    writeZeroes: true,
    deallocate: true,
    volatileWriteCache: false,
  },
};

export const PATH_QUEUE: PathQueueOptions = {
  policy: 'round-robin',
  ioTimeoutMs: 0,
  retryDelaysMs: [0, 0, 0],
};
