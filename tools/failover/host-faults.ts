/**
 * Faults in the packets of the test's own host, for targets that take none: every device that the host opens meets the
 * rules from its first packet on, also one that is opened while a path is being got back.
 */
import { systemEnvironment } from '../../initiator/environment.ts';
import type { Environment } from '../../initiator/environment.ts';
import { NO_FAULTS } from '../../initiator/index.ts';
import type { Counters, FaultRule, Faults } from '../../initiator/index.ts';
import type { DeviceLease, RuntimeLease } from '../../native/shared-runtime.ts';
import type { End } from './faulty-target.ts';

export class HostFaults {
  readonly environment: Environment;
  readonly #seed: number;
  readonly #devices = new Set<DeviceLease>();
  readonly #rules = new Set<FaultRule>();
  #runtime: RuntimeLease['runtime'] | undefined;
  /** Of devices that were closed, whose counters went with them. */
  readonly #past = new Map<string, number>();

  /** For connections with the option `faultInjection`. */
  constructor(seed: number, base: Environment = systemEnvironment) {
    this.#seed = seed;
    this.environment = { ...base, acquire: (options) => this.#watched(base.acquire(options)) };
  }

  /** In addition to the rules that hold; the first that fits a packet counts. */
  add(rule: FaultRule): End {
    this.#rules.add(rule);
    this.#tell();
    return () => {
      this.#rules.delete(rule);
      this.#tell();
    };
  }

  /** `soft.fault.*` of all devices that the host has or had. */
  counters(): Counters {
    const all = new Map(this.#past);
    for (const [name, value] of this.#now()) all.set(name, (all.get(name) ?? 0) + value);
    return Object.fromEntries(all);
  }

  #now(): [string, number][] {
    const all = Object.entries(this.#runtime?.door.counters() ?? {});
    return all.filter(([name]) => name.startsWith('soft.fault.'));
  }

  /** What the close of a device takes from the counters is kept. */
  #closing(close: () => void): void {
    const before = this.#now();
    close();
    const after = new Map(this.#now());
    for (const [name, value] of before) {
      const gone = value - (after.get(name) ?? 0);
      if (gone > 0) this.#past.set(name, (this.#past.get(name) ?? 0) + gone);
    }
  }

  #watched(lease: RuntimeLease): RuntimeLease {
    this.#runtime = lease.runtime;
    return {
      ...lease,
      openDevice: (options) => {
        const device = lease.openDevice(options);
        this.#devices.add(device);
        try {
          device.setFaults(this.#faults());
        } catch (error) {
          this.#devices.delete(device);
          device.release();
          throw error;
        }
        return {
          ...device,
          release: () => {
            this.#devices.delete(device);
            this.#closing(() => {
              device.release();
            });
          },
        };
      },
    };
  }

  #faults(): Faults {
    return this.#rules.size === 0 ? NO_FAULTS : { seed: this.#seed, rules: [...this.#rules] };
  }

  #tell(): void {
    const faults = this.#faults();
    for (const device of this.#devices) device.setFaults(faults);
  }
}
