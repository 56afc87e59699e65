/**
 * One namespace: its configuration, and while it is enabled the backing that holds its blocks. The subsystem decides when it opens
 * and closes.
 */
import type { BackingId, BackingInfo, BackingOptions, Door } from '../native/index.ts';
import { NvmeofError, messageOf } from '../native/common/errors.ts';
import { parseUuid } from '../native/common/uuid.ts';
import type { CompleteNamespace } from './identity.ts';

interface Open {
  readonly backing: BackingId;
  readonly info: BackingInfo;
}

/** What a person calls it: the path, or 'memory', 'null'. */
function nameOf(config: CompleteNamespace): string {
  return config.path ?? (config.memory === undefined ? 'null' : 'memory');
}

function backingOptions(
  config: CompleteNamespace,
  cache: CompleteNamespace['cache'],
): BackingOptions {
  const common = {
    blockSize: config.blockSize,
    readOnly: config.readOnly,
    shared: config.shared,
    cache,
    delayWritesMs: config.delayWritesMs,
  };
  if (config.memory !== undefined) return { ...common, kind: 'memory', size: config.memory };
  if (config.null !== undefined) return { ...common, kind: 'null', size: config.null };
  const path = config.path ?? '';
  const kind = path.startsWith('/dev/') ? 'block' : 'file';
  return config.size === undefined
    ? { ...common, kind, path }
    : { ...common, kind, path, size: config.size };
}

export class Namespace {
  readonly nsid: number;
  readonly uuid: Uint8Array;
  readonly nguid: Uint8Array;
  #config: CompleteNamespace;
  #open: Open | undefined;

  constructor(config: CompleteNamespace) {
    this.#config = config;
    this.nsid = config.nsid;
    this.uuid = parseUuid(config.uuid);
    this.nguid = Uint8Array.from(Buffer.from(config.nguid, 'hex'));
  }

  get config(): CompleteNamespace {
    return this.#config;
  }

  get name(): string {
    return nameOf(this.#config);
  }

  get enabled(): boolean {
    return this.#open !== undefined;
  }

  get backing(): BackingId | undefined {
    return this.#open?.backing;
  }

  get info(): BackingInfo | undefined {
    return this.#open?.info;
  }

  /** Logical blocks; 0 while disabled. */
  get blocks(): bigint {
    return (this.#open?.info.size ?? 0n) / BigInt(this.#config.blockSize);
  }

  /** Opened for reading: nothing can make it writable before it is opened anew. */
  get readOnly(): boolean {
    return this.#config.readOnly || this.#open?.info.readOnly === true;
  }

  /** What hosts are told, and held to. */
  get writeProtected(): boolean {
    return this.readOnly || this.#config.writeProtected;
  }

  protect(writeProtected: boolean): void {
    this.#config = { ...this.#config, writeProtected };
  }

  /** `volatileAllowed` false: hosts were told that there is no volatile cache, so every write must be durable. */
  async open(door: Door, volatileAllowed: boolean): Promise<void> {
    const cache = volatileAllowed ? this.#config.cache : 'write-through';
    let backing: BackingId;
    try {
      backing = await door.openBacking(backingOptions(this.#config, cache));
    } catch (error) {
      throw new NvmeofError('NAMESPACE_OPEN', `namespace ${this.nsid}: ${messageOf(error)}`, {
        object: this.name,
        cause: error,
      });
    }
    const info = door.backingInfo(backing);
    if (info.volatileWriteCache && !volatileAllowed) {
      await door.closeBacking(backing);
      throw new NvmeofError(
        'NAMESPACE_VOLATILE',
        `namespace ${this.nsid}: ${this.name} has a volatile write cache, but the hosts attached now were told there is none; add it when no host is attached`,
        { object: this.name },
      );
    }
    this.#open = { backing, info };
  }

  async close(door: Door): Promise<void> {
    const open = this.#open;
    this.#open = undefined;
    if (open) await door.closeBacking(open.backing);
  }

  set anaGroup(group: number) {
    this.#config = { ...this.#config, anaGroup: group };
  }

  get anaGroup(): number {
    return this.#config.anaGroup;
  }

  async resize(door: Door, size: bigint): Promise<void> {
    const open = this.#open;
    const { blockSize } = this.#config;
    if (size <= 0n || size % BigInt(blockSize) !== 0n) {
      throw new NvmeofError(
        'NAMESPACE_SIZE',
        `namespace ${this.nsid}: ${size} bytes is not a multiple of the block size ${blockSize}`,
        { object: this.name },
      );
    }
    if (!open && this.#config.path !== undefined) {
      throw new NvmeofError(
        'NAMESPACE_DISABLED',
        `namespace ${this.nsid} is disabled, and ${this.name} not open; enable it, then resize it`,
        { object: this.name },
      );
    }
    if (open) {
      await door.resizeBacking(open.backing, size);
      this.#open = { backing: open.backing, info: door.backingInfo(open.backing) };
    }
    this.#config = this.#resized(size);
  }

  #resized(size: bigint): CompleteNamespace {
    if (this.#config.memory !== undefined) return { ...this.#config, memory: size };
    if (this.#config.null !== undefined) return { ...this.#config, null: size };
    // A file keeps what the namespace no longer shows: after a restart only this says where it ends.
    return { ...this.#config, size };
  }
}
