/**
 * The one Runtime of this process and its devices, counted by leases: a target and any number of controllers may live
 * in one process, but there is one set of reactors, and one address can be opened once (UDP port 4791 has one owner).
 * The first lease starts the reactors, the last one stops them. While a lease is held the process stays alive.
 * Runs on the JavaScript thread.
 */
import { resolve } from 'node:path';
import { NvmeofError, messageOf } from './common/errors.ts';
import type { Faults } from './common/faults.ts';
import { loadDoor } from './index.ts';
import type { DeviceId, DeviceInfo, DeviceOptions, Door, ReactorIndex } from './index.ts';
import { Runtime } from './runtime.ts';

export interface RuntimeLeaseOptions {
  /** Cores of the reactors, -1: not pinned. Default: those that run already, else one reactor that is not pinned. */
  readonly cores?: readonly number[];
  readonly pollForever?: boolean;
}

export interface DeviceLease {
  readonly id: DeviceId;
  readonly info: DeviceInfo;
  /** True when somebody else in this process had it open already. */
  readonly shared: boolean;
  /** For all who share the device (common/faults.ts). */
  setFaults(faults: Faults): void;
  /** The last lease closes the device. Further calls do nothing. */
  release(): void;
}

export interface RuntimeLease {
  readonly runtime: Runtime;
  /** The reactors this lease asked for, in the order of its `cores`. */
  readonly reactors: readonly ReactorIndex[];
  /** Of each reactor of the process, by its index; -1: not pinned. */
  readonly cores: readonly number[];
  openDevice(options: DeviceOptions): DeviceLease;
  release(): void;
}

export class RuntimeInUseError extends Error {
  override readonly name = 'RuntimeInUseError';
  readonly code = 'ERR_NVMEOF_RUNTIME_IN_USE';
}

/** Somebody in this process has the address, or the file, open in a way that does not fit what was asked for. */
export class DeviceInUseError extends NvmeofError {
  override readonly name = 'DeviceInUseError';
  constructor(address: string, message: string) {
    super('DEVICE_IN_USE', message, { object: address });
  }
}

/** The provider that was asked for cannot be had on this machine: no RDMA device owns the address, or libraries are missing. */
export class ProviderUnavailableError extends NvmeofError {
  override readonly name = 'ProviderUnavailableError';
  constructor(provider: string, cause: unknown) {
    super(
      'PROVIDER_UNAVAILABLE',
      `the ${provider} provider cannot be used: ${messageOf(cause)} The provider "soft" (RoCEv2 over UDP) needs no RDMA device, "auto" chooses.`,
      { object: provider, cause },
    );
  }
}

interface OpenDevice {
  readonly id: DeviceId;
  readonly info: DeviceInfo;
  /** As the first user asked for it. */
  readonly options: DeviceOptions;
  leases: number;
}

interface Running {
  readonly runtime: Runtime;
  readonly cores: readonly number[];
  readonly devices: Map<string, OpenDevice>;
  readonly keepProcessAlive: NodeJS.Timeout;
  leases: number;
}

/** What receive buffers are sized for when nobody says. */
const IN_CAPSULE_BYTES_DEFAULT = 4096;

/** Longest period a Node timer takes; it never has to fire. */
const NEVER_MS = 0x7fff_ffff;

type Starter = (options: {
  readonly cores: readonly number[];
  readonly pollForever: boolean;
}) => Runtime;

/** Tests make their own over a fake door; the product uses `acquireRuntime`. */
export class SharedRuntime {
  readonly #start: Starter;
  #running: Running | undefined;

  constructor(start: Starter) {
    this.#start = start;
  }

  acquire(options: RuntimeLeaseOptions = {}): RuntimeLease {
    const running = (this.#running ??= this.#begin(options));
    const reactors = pickReactors(running.cores, options.cores);
    running.leases += 1;
    let released = false;
    return {
      runtime: running.runtime,
      reactors,
      cores: running.cores,
      openDevice: (device) => this.#openDevice(running, device),
      release: () => {
        if (released) return;
        released = true;
        running.leases -= 1;
        if (running.leases === 0) this.#end(running);
      },
    };
  }

  #begin(options: RuntimeLeaseOptions): Running {
    const cores = options.cores && options.cores.length > 0 ? [...options.cores] : [-1];
    const runtime = this.#start({ cores, pollForever: options.pollForever ?? false });
    const keepProcessAlive = setInterval(() => undefined, NEVER_MS);
    return { runtime, cores, devices: new Map(), keepProcessAlive, leases: 0 };
  }

  #end(running: Running): void {
    this.#running = undefined;
    clearInterval(running.keepProcessAlive);
    for (const device of running.devices.values()) running.runtime.door.closeDevice(device.id);
    running.devices.clear();
    running.runtime.stop();
  }

  #openDevice(running: Running, options: DeviceOptions): DeviceLease {
    const { door } = running.runtime;
    const known = running.devices.get(options.address);
    if (known) checkFits(known, options);
    else checkCapture(running, options);
    const device = known ?? openNew();
    device.leases += 1;
    let released = false;
    return {
      id: device.id,
      info: device.info,
      shared: known !== undefined,
      setFaults: (faults) => {
        door.setFaults(device.id, faults);
      },
      release: () => {
        if (released) return;
        released = true;
        device.leases -= 1;
        if (device.leases > 0 || running.devices.get(options.address) !== device) return;
        running.devices.delete(options.address);
        door.closeDevice(device.id);
      },
    };

    function openNew(): OpenDevice {
      const id = openByDoor(door, options);
      const opened = { id, info: door.deviceInfo(id), options, leases: 0 };
      running.devices.set(options.address, opened);
      return opened;
    }
  }
}

/** No libraries (one number with two names on Linux), no device for the address, or none with a GID that fits. */
const UNAVAILABLE: ReadonlySet<unknown> = new Set([
  'ENOTSUP',
  'EOPNOTSUPP',
  'ENODEV',
  'EADDRNOTAVAIL',
]);

function openByDoor(door: Door, options: DeviceOptions): DeviceId {
  try {
    return door.openDevice(options);
  } catch (error) {
    const code = (error as { readonly code?: unknown } | null)?.code;
    if (UNAVAILABLE.has(code) && options.provider === 'verbs') {
      throw new ProviderUnavailableError(options.provider, error);
    }
    throw error;
  }
}

interface Difference {
  readonly what: string;
  readonly asked: number | string | boolean;
  readonly open: number | string | boolean;
}

/** What the open device has otherwise than asked. An option left out, a path MTU of 0 and provider 'auto' ask for nothing. */
function differences({ info, options: first }: OpenDevice, asked: DeviceOptions): Difference[] {
  const found: Difference[] = [];
  const compare = (
    what: string,
    wanted: number | string | boolean | undefined,
    open: number | string | boolean,
  ): void => {
    if (wanted !== undefined && wanted !== open) found.push({ what, asked: wanted, open });
  };
  const preset = 'the default';
  compare('provider', asked.provider === 'auto' ? undefined : asked.provider, info.provider);
  compare('path MTU', asked.pathMtu === 0 ? undefined : asked.pathMtu, info.pathMtu);
  compare('capture file', fullPath(asked.pcapPath), fullPath(first.pcapPath) ?? 'none');
  compare('ICRC check', asked.icrc, first.icrc ?? 'recovered');
  // Whoever asks for none does not want them from somebody else either.
  compare('fault injection', asked.faultInjection ?? false, first.faultInjection ?? false);
  compare('socket buffer', asked.socketBufferBytes, first.socketBufferBytes ?? preset);
  compare('local ACK timeout', asked.localAckTimeout, first.localAckTimeout ?? preset);
  compare('connect timeout', asked.connectTimeoutMs, first.connectTimeoutMs ?? preset);
  const inCapsule = first.inCapsuleBytesMax ?? IN_CAPSULE_BYTES_DEFAULT;
  // Larger receive buffers than asked for serve, too.
  if ((asked.inCapsuleBytesMax ?? 0) > inCapsule) {
    compare('in-capsule data', asked.inCapsuleBytesMax, inCapsule);
  }
  return found;
}

function fullPath(path: string | undefined): string | undefined {
  return path === undefined ? undefined : resolve(path);
}

/** Throws when a second user of an address would not get what it asks for. */
function checkFits(open: OpenDevice, asked: DeviceOptions): void {
  const [first] = differences(open, asked);
  if (!first) return;
  throw new DeviceInUseError(
    asked.address,
    `${asked.address} is open in this process with ${first.what} ${first.open}, not ${first.asked}; ` +
      `ask for the same, leave it out, or use another address`,
  );
}

/** A file that two devices write is of no use to anybody. */
function checkCapture(running: Running, asked: DeviceOptions): void {
  if (asked.pcapPath === undefined) return;
  for (const { options } of running.devices.values()) {
    if (fullPath(options.pcapPath) !== fullPath(asked.pcapPath)) continue;
    throw new DeviceInUseError(
      asked.address,
      `${asked.pcapPath} takes the packets of ${options.address} already; name another capture file`,
    );
  }
}

/** Maps the wanted cores to running reactors; each reactor is given once. */
function pickReactors(
  running: readonly number[],
  wanted: readonly number[] | undefined,
): readonly ReactorIndex[] {
  if (!wanted || wanted.length === 0) return running.map((_, index) => index);
  const free = new Set(running.keys());
  return wanted.map((core) => {
    for (const index of free) {
      if (running[index] !== core) continue;
      free.delete(index);
      return index;
    }
    throw new RuntimeInUseError(
      `core ${core} was asked for, but the reactors of this process already run on cores ` +
        `${running.join(', ')}; ask for these, or for none`,
    );
  });
}

const shared = new SharedRuntime((options) => Runtime.start(loadDoor(), options));

/** A share in the process's reactors; release it when its queues are closed. */
export function acquireRuntime(options: RuntimeLeaseOptions = {}): RuntimeLease {
  return shared.acquire(options);
}
