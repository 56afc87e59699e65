/**
 * A namespace that other processes use through this one, while its controller is connected: what native needs to know
 * of it, and the servers. It ends with `detach()`, or with the controller. Runs on the JavaScript thread.
 */
import type { AttachGeometry, AttachmentId, Door, QueueId } from '../native/index.ts';
import type { IdentifyController } from '../native/wire/identify.ts';
import type { TransferLimits } from './bring-up.ts';
import { DisconnectedError } from './errors.ts';
import type { Namespace } from './namespace.ts';
import { blocksPerCommand } from './transfers.ts';

/** Whole blocks of a limit in bytes. */
function blocksOf(bytes: number, lbaSize: number): bigint {
  return BigInt(Math.max(1, Math.floor(bytes / lbaSize)));
}

/** The smaller of two limits in blocks; 0 is none. */
function smaller(a: bigint, b: bigint): bigint {
  if (a === 0n || b === 0n) return a + b;
  return a < b ? a : b;
}

export function geometryOf(
  namespace: Namespace,
  data: IdentifyController,
  limits: Omit<TransferLimits, 'verifyBytesMax'>,
): AttachGeometry {
  const { lbaSize } = namespace;
  const { rangeBlocks, commandBlocks } = limits.deallocateLimits;
  return {
    nsid: namespace.nsid,
    lbaBytes: lbaSize,
    lbaCount: namespace.lbaCount,
    transferBytesMax: blocksPerCommand(limits.transferBytesMax, lbaSize) * lbaSize,
    writeZeroesBlocksMax: blocksOf(limits.writeZeroesBytesMax, lbaSize),
    // One range a command.
    discardBlocksMax: smaller(BigInt(rangeBlocks), commandBlocks),
    readOnly: namespace.writeProtected,
    writeZeroes: data.oncsWriteZeroes,
    deallocate: data.oncsDatasetManagement,
    volatileWriteCache: data.vwcPresent,
  };
}

export interface AttachContext {
  readonly door: Door;
  /** "NQN namespace N": what clients show people. */
  readonly description: string;
  readonly queues: readonly QueueId[];
  /** Commands in flight on each queue. */
  readonly depth: number;
  /** Of each command; 0: none. */
  readonly commandTimeoutMs: number;
  readonly geometry: AttachGeometry;
  /** Nothing of it is left. */
  readonly onDetached: (attachment: Attachment) => void;
}

export class Attachment {
  readonly #door: Door;
  readonly #id: AttachmentId;
  readonly #description: string;
  readonly #onDetached: (attachment: Attachment) => void;
  #detached: Promise<void> | undefined;

  /** For `Controller.attach`. */
  constructor({ door, description, onDetached, ...options }: AttachContext) {
    this.#door = door;
    this.#description = description;
    this.#onDetached = onDetached;
    this.#id = door.attach(options);
  }

  /**
   * Serves the namespace to clients of the NBD protocol on the Unix socket `path` (mode 0600), which is removed at the
   * end. A socket that nobody listens on is taken over. Throws with `code` EADDRINUSE when somebody does.
   */
  serveNbd(path: string): void {
    if (this.#detached) throw new DisconnectedError(`${this.#description} is detached`);
    this.#door.serveNbd(this.#id, path, this.#description);
  }

  /** The same for clients over shared memory (native/client), such as fio's engine. */
  serveClients(path: string): void {
    if (this.#detached) throw new DisconnectedError(`${this.#description} is detached`);
    this.#door.serveClients(this.#id, path);
  }

  /** Hangs up on the clients; resolves when their last request has ended, or the connection to the controller has. */
  detach(): Promise<void> {
    this.#detached ??= this.#end();
    return this.#detached;
  }

  async #end(): Promise<void> {
    await this.#door.detach(this.#id);
    this.#onDetached(this);
  }
}
