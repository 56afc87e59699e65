/**
 * The one Runtime of this process and its devices, counted by leases: a target and any number of controllers may live
 * in one process, but there is one set of reactors, and one address can be opened once (UDP port 4791 has one owner).
 * The first lease starts the reactors, the last one stops them. While a lease is held the process stays alive.
 * Runs on the JavaScript thread.
 */
import { loadDoor } from './index.ts';
import type { DeviceId, DeviceInfo, DeviceOptions, ReactorIndex } from './index.ts';
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
  /** The last lease closes the device. Further calls do nothing. */
  release(): void;
}

export interface RuntimeLease {
  readonly runtime: Runtime;
  /** The reactors this lease asked for, in the order of its `cores`. */
  readonly reactors: readonly ReactorIndex[];
  openDevice(options: DeviceOptions): DeviceLease;
  release(): void;
}

export class RuntimeInUseError extends Error {
  override readonly name = 'RuntimeInUseError';
  readonly code = 'ERR_NVMEOF_RUNTIME_IN_USE';
}

interface OpenDevice {
  readonly id: DeviceId;
  readonly info: DeviceInfo;
  leases: number;
}

interface Running {
  readonly runtime: Runtime;
  readonly cores: readonly number[];
  readonly devices: Map<string, OpenDevice>;
  readonly keepProcessAlive: NodeJS.Timeout;
  leases: number;
}

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
    const device = known ?? openNew();
    device.leases += 1;
    let released = false;
    return {
      id: device.id,
      info: device.info,
      shared: known !== undefined,
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
      const id = door.openDevice(options);
      const opened = { id, info: door.deviceInfo(id), leases: 0 };
      running.devices.set(options.address, opened);
      return opened;
    }
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
