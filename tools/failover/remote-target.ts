/**
 * A target that existed before the test, and goes on after it: packets meet faults in the host's own link, everything else
 * goes through the target's control socket, where it has one.
 */
import { z } from 'zod';
import { anaView } from '../../target/control/ana-methods.ts';
import type { FaultRule } from '../../target/index.ts';
import { formatEndpoint, parseAddress, sameAddress } from '../../native/common/address.ts';
import type { Counters } from '../../native/common/counters.ts';
import { call } from '../cli/control/client.ts';
import type { End, FaultyTarget, Where } from './faulty-target.ts';
import type { HostFaults } from './host-faults.ts';
import { ioCommandsOf } from './managed-target.ts';
import type { FaultKind } from './scenario.ts';

export interface RemoteTargetOptions extends Where {
  /** Of `nvmeof target --control`; absent: nothing can be asked of it. */
  readonly control?: string;
}

const NOT_OURS: ReadonlySet<FaultKind> = new Set(['kill', 'restart', 'stop']);
const BY_CONTROL: ReadonlySet<FaultKind> = new Set(['terminate', 'ana', 'resize']);
const BY_PACKETS: ReadonlySet<FaultKind> = new Set([
  ...(['blackhole', 'loss', 'duplicate', 'reorder', 'delay'] as const),
]);
const OPPOSITE = { in: 'out', out: 'in', both: 'both' } as const;

const statistics = z.object({ counters: z.record(z.string(), z.number()) });
const anaViews = z.array(anaView);

export class RemoteTarget implements FaultyTarget {
  readonly endpoint: string;
  readonly where: FaultyTarget['where'];
  readonly ioCommands?: () => Promise<number>;
  readonly #options: RemoteTargetOptions;
  readonly #host: HostFaults;
  /** Others at the same address, whose packets cannot be told from its own. */
  readonly #neighbours: readonly Where[];

  constructor(options: RemoteTargetOptions, all: readonly Where[], host: HostFaults) {
    const { address, port, nqn, control } = options;
    this.endpoint = formatEndpoint({ address: parseAddress(address), port });
    // Others of this process share the device, and meet the same packets.
    this.where = { address, port, nqn, faultInjection: true };
    this.#options = options;
    this.#host = host;
    this.#neighbours = all.filter(
      (each) =>
        sameAddress(parseAddress(each.address), parseAddress(address)) && each.port !== port,
    );
    if (control !== undefined) this.ioCommands = () => this.#ioCommands();
  }

  refusal(kind: FaultKind): string | undefined {
    if (NOT_OURS.has(kind)) {
      return 'it is not a process of this test, which neither ends nor stops what it did not start';
    }
    if (BY_CONTROL.has(kind) && this.#options.control === undefined) {
      return 'nothing can be asked of it; name its control socket with --control SOCKET';
    }
    const [neighbour] = this.#neighbours;
    if (BY_PACKETS.has(kind) && neighbour) {
      return `port ${neighbour.port} of the same address is a path too, and packets of both are the same to the host; use paths with addresses of their own`;
    }
    return undefined;
  }

  packetFault(rule: FaultRule): Promise<End> {
    const { direction = 'both' } = rule;
    const { address: peer } = this.#options;
    return Promise.resolve(this.#host.add({ ...rule, peer, direction: OPPOSITE[direction] }));
  }

  /** Of the host: it is its packets that meet them. */
  faultCounters(): Promise<Counters> {
    return Promise.resolve(this.#host.counters());
  }

  /** Drained, and resumed afterwards: for a host the same as an end in good order. */
  async terminate(): Promise<End> {
    await this.#call('target.drain', { waitMs: 0 });
    return async () => {
      await this.#call('target.resume', {});
    };
  }

  async resize(nsid: number, bytes: bigint): Promise<void> {
    const { nqn } = this.#options;
    await this.#call('namespace.resize', { nqn, nsid, size: bytes });
  }

  /** At this port alone. */
  async setAnaState(nsid: number, state: string): Promise<End> {
    const { nqn } = this.#options;
    const port = this.endpoint;
    const views = anaViews.parse(await this.#call('ana.list', { nqn }));
    const before = views.find((each) => each.port === port && each.nsids.includes(nsid));
    if (!before) {
      throw new Error(
        `the target at ${this.#options.control ?? ''} has no namespace ${nsid} at ${port}`,
      );
    }
    const set = async (each: string): Promise<void> => {
      await this.#call('ana.set', { nqn, group: before.group, state: each, port });
    };
    await set(state);
    return () => set(before.state);
  }

  async #ioCommands(): Promise<number> {
    const { counters } = statistics.parse(await this.#call('target.statistics', {}));
    return ioCommandsOf(counters);
  }

  #call(method: string, params: object): Promise<unknown> {
    return call(this.#options.control, method, params);
  }
}
