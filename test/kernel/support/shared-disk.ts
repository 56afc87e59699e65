/**
 * One file exported by two targets, processes of their own on addresses of their own: two paths to one disk, and ways to
 * take one of them away. Which target is meant is its place in `sides`.
 */
import { NO_FAULTS, type AnaStateName } from '../../../target/index.ts';
import { LiveTarget } from './live-target.ts';
import type { Progress } from './load.ts';
import { addOutsideAddress } from './network.ts';
import { NQN, PORT, sparseFile } from './our-target.ts';
import type { Lab } from './scenario.ts';
import { pause } from './until.ts';

const MIB = 1 << 20;
/** Addresses of the second target; guests have lower ones. */
const SECOND = { IPv4: '10.10.0.200', IPv6: 'fd10::200' } as const;
const CNTLIDS = [
  { first: 1, last: 999 },
  { first: 1000, last: 1999 },
] as const;
const PROGRESS_MS = 60_000;
const LOOK_MS = 50;

/** One of the two targets. */
export class Side {
  readonly address: string;
  readonly #start: () => Promise<LiveTarget>;
  #target: LiveTarget;

  private constructor(address: string, start: () => Promise<LiveTarget>, target: LiveTarget) {
    this.address = address;
    this.#start = start;
    this.#target = target;
  }

  static async start(lab: Lab, file: string, index: 0 | 1): Promise<Side> {
    const address = index === 0 ? lab.address : SECOND[lab.variant.family];
    if (index === 1) addOutsideAddress(address);
    const start = (): Promise<LiveTarget> =>
      LiveTarget.start(lab, {
        address,
        faultInjection: true,
        subsystems: [
          { nqn: NQN, cntlids: CNTLIDS[index], namespaces: [{ path: file, shared: true }] },
        ],
      });
    return new Side(address, start, await start());
  }

  get target(): LiveTarget {
    return this.#target;
  }

  /** As `nvmeof target` ends by this signal. */
  async end(signal: 'SIGTERM' | 'SIGKILL'): Promise<void> {
    await this.#target.end(signal);
  }

  async begin(): Promise<void> {
    this.#target = await this.#start();
  }

  /** No packet gets through, either way, and none tells why; a promise of `mend` ends it. */
  async blackhole(): Promise<void> {
    await this.#target.faults({ rules: [{ drop: 1 }] });
  }

  async delay(ms: number): Promise<void> {
    await this.#target.faults({ rules: [{ delayMs: ms }] });
  }

  async mend(): Promise<void> {
    await this.#target.faults(NO_FAULTS);
  }

  async setAna(state: AnaStateName): Promise<void> {
    await this.#target.call('setAnaState', NQN, { group: 1, state });
  }

  /** The device stays: a host that comes is told that nobody listens, instead of nothing. */
  async withdraw(): Promise<void> {
    await this.#target.call('addPort', { address: this.address, port: PORT + 1 });
    await this.#target.removePort();
  }

  async offer(): Promise<void> {
    await this.#target.addPort();
    await this.#target.call('removePort', this.address, PORT + 1);
  }
}

export class SharedDisk implements Progress {
  readonly file: string;
  readonly sides: readonly [Side, Side];

  private constructor(file: string, sides: readonly [Side, Side]) {
    this.file = file;
    this.sides = sides;
  }

  static async start(lab: Lab, size = 16 * MIB): Promise<SharedDisk> {
    const file = sparseFile(lab, 'disk.img', size);
    return new SharedDisk(file, [await Side.start(lab, file, 0), await Side.start(lab, file, 1)]);
  }

  /** Reads and writes that each target has executed since it started; 0 for one that does not run. */
  async ioCommands(): Promise<readonly [number, number]> {
    const of = ({ target }: Side): Promise<number> =>
      target.running ? target.ioCommands() : Promise.resolve(0);
    return [await of(this.sides[0]), await of(this.sides[1])];
  }

  /** Of both together; neither may end or begin meanwhile. */
  async progress(commands = 50): Promise<void> {
    const total = async (): Promise<number> => {
      const [first, second] = await this.ioCommands();
      return first + second;
    };
    const wanted = (await total()) + commands;
    const deadline = performance.now() + PROGRESS_MS;
    while ((await total()) < wanted) {
      if (performance.now() > deadline) {
        throw new Error(`no ${commands} reads and writes within ${PROGRESS_MS} ms`);
      }
      await pause(LOOK_MS);
    }
  }
}
