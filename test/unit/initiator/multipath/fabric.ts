/**
 * Several controllers behind one fake door, told apart by the address that the host connects to, and a subsystem over paths to
 * them. Time is turned by hand.
 */
import { expect } from 'chai';
import { ManualClock } from '../../../../native/common/clock.ts';
import type { QueueId } from '../../../../native/index.ts';
import { SharedRuntime } from '../../../../native/shared-runtime.ts';
import { AnaState, encodeAnaLog } from '../../../../native/wire/ana.ts';
import type { AnaLogGroup } from '../../../../native/wire/ana.ts';
import { LogId } from '../../../../native/wire/logs.ts';
import type { Environment } from '../../../../initiator/environment.ts';
import type { PathChange } from '../../../../initiator/multipath/events.ts';
import type { FenceOutcome } from '../../../../initiator/multipath/fence.ts';
import { LOCAL_DISTANCE } from '../../../../initiator/multipath/numa.ts';
import type { NumaDistance } from '../../../../initiator/multipath/numa.ts';
import type { MultipathOptions } from '../../../../initiator/multipath/options.ts';
import { MultipathSubsystem } from '../../../../initiator/multipath/subsystem.ts';
import { FakeDoor } from '../../../support/fake-door.ts';
import { FakeController, NQN } from '../fake-controller.ts';
import { HOST_ID, HOST_NQN, settle } from '../support.ts';

export const A = '192.0.2.11';
export const B = '192.0.2.12';
export const PATH_A = `${A}:4420`;
export const PATH_B = `${B}:4420`;

/** How late a timer may be noticed, ms. */
export const SLACK_MS = 250;
const STEP_MS = 50;
const NOTICE = 2;
const ANA_CHANGE = 3;
const NAMESPACES_CHANGED = 0;
const ERROR_NO_ROUTE = 113;

/** A controller with ANA, of a subsystem that several controllers share. */
export class FakePort extends FakeController {
  readonly address: string;
  /** Connects that are answered with nothing are counted, too. */
  attempts = 0;
  /** Nobody listens. */
  unreachable = false;
  #changes = 0n;

  constructor(door: FakeDoor, address: string, cntlid: number) {
    super(door);
    this.address = address;
    const groups = { cmicAna: true, oaesAna: true, anagrpmax: 4, nanagrpid: 2, anatt: 10 };
    this.controller = { ...this.controller, cmicMultiController: true, ...groups };
    this.setCntlid(cntlid);
    this.share(1);
    this.setAna('optimized');
  }

  setCntlid(cntlid: number): void {
    this.connectResult = { cntlid };
    this.controller = { ...this.controller, cntlid };
  }

  /** The namespace says that several controllers may have it, and that it is in group 1. */
  share(nsid: number): void {
    const namespace = this.namespaces.get(nsid);
    if (!namespace) throw new Error(`no namespace ${nsid}`);
    namespace.identify = { nmicShared: true, anagrpid: 1, ...namespace.identify };
  }

  /** Of group 1; no event is sent. */
  setAna(state: keyof typeof AnaState, groups: readonly AnaLogGroup[] = []): void {
    this.#changes += 1n;
    const first = { group: 1, changeCount: this.#changes, state: AnaState[state], nsids: [1] };
    this.logs.set(LogId.ana, encodeAnaLog(this.#changes, [first, ...groups]));
  }

  sendAnaChange(): void {
    this.sendEvent(NOTICE, ANA_CHANGE, LogId.ana);
  }

  /** Like `setAna`, with its event. */
  changeAna(state: keyof typeof AnaState): void {
    this.setAna(state);
    this.sendAnaChange();
  }

  /** The host shall ask for its namespaces again. */
  sendNamespacesChanged(): void {
    this.logs.set(LogId.changedNamespaces, new Uint8Array(4096));
    this.sendEvent(NOTICE, NAMESPACES_CHANGED, LogId.changedNamespaces);
  }

  /** The connection is gone, and the host learns of it. */
  cut(): void {
    this.dropQueue(this.queueOf(0), 'cut');
  }

  /** Gone, and it does not come back before `unreachable` is false. */
  die(): void {
    this.unreachable = true;
    this.cut();
  }

  /** Takes whatever is sent and answers nothing from now on. */
  fallSilent(): void {
    this.hold = () => true;
  }

  speak(): void {
    this.hold = (name) => name === 'asyncEventRequest';
  }
}

/** What a subsystem emits, kept for assertions. */
export class MultipathEvents {
  readonly states: PathChange[] = [];
  readonly warnings: string[] = [];
  readonly failing: [number, boolean][] = [];
  readonly released: [string, FenceOutcome][] = [];
  readonly ana: string[] = [];
  readonly namespaces: string[] = [];

  constructor(subsystem: MultipathSubsystem) {
    subsystem.on('pathState', (change) => this.states.push(change));
    subsystem.on('warning', ({ message }) => this.warnings.push(message));
    subsystem.on('failing', (nsid, failing) => this.failing.push([nsid, failing]));
    subsystem.on('writesReleased', (endpoint, outcome) => this.released.push([endpoint, outcome]));
    subsystem.on('anaChange', (endpoint, groups) =>
      this.ana.push(`${endpoint} ${groups.map(({ id, state }) => `${id}=${state}`).join(' ')}`),
    );
    subsystem.on('namespacesChanged', ({ added, removed, changed }) =>
      this.namespaces.push(
        [
          ...added.map((n) => `+${n}`),
          ...removed.map((n) => `-${n}`),
          ...changed.map((n) => `~${n}`),
        ].join(' '),
      ),
    );
  }
}

type Options = Partial<MultipathOptions>;

export class Fabric {
  readonly door = new FakeDoor();
  readonly clock = new ManualClock();
  readonly environment: Environment;
  numaDistance: NumaDistance = () => LOCAL_DISTANCE;
  readonly ports = new Map<string, FakePort>();
  readonly connected: MultipathSubsystem[] = [];
  readonly a: FakePort;
  readonly b: FakePort;
  readonly #owners = new Map<QueueId, FakePort>();

  constructor() {
    const { door, clock } = this;
    const shared = new SharedRuntime((options) => {
      door.start({ ...options, onWake: () => undefined });
      return door.runtime;
    });
    this.environment = {
      clock,
      source: {
        routedAddress: () => Promise.resolve('192.0.2.1'),
        randomLoopback: () => '127.9.9.1',
      },
      numaDistance: (core, device) => this.numaDistance(core, device),
      acquire: (options) => shared.acquire(options),
      identity: () => ({ hostNqn: HOST_NQN, hostId: HOST_ID }),
    };
    this.a = this.add(A, 1);
    this.b = this.add(B, 2);
  }

  /** Another controller; the hooks that it puts into the door are called for its own queues only. */
  add(address: string, cntlid: number): FakePort {
    const { door } = this;
    const before = {
      onConnect: door.onConnect,
      onSubmit: door.onSubmit,
      onCancel: door.onCancel,
      onCloseQueue: door.onCloseQueue,
    };
    const port = new FakePort(door, address, cntlid);
    this.ports.set(address, port);
    const { onConnect, onSubmit, onCancel, onCloseQueue } = door;
    const owns = (queue: QueueId): boolean => this.#owners.get(queue) === port;
    door.onConnect = (queue, options) => {
      if (options.address !== address) {
        before.onConnect?.(queue, options);
        return;
      }
      port.attempts += 1;
      this.#owners.set(queue, port);
      if (!port.unreachable) onConnect?.(queue, options);
      else this.#refuse(queue);
    };
    door.onSubmit = (command) => (owns(command.queue) ? onSubmit : before.onSubmit)?.(command);
    door.onCancel = (queue, tag) => (owns(queue) ? onCancel : before.onCancel)?.(queue, tag);
    door.onCloseQueue = (queue) => {
      if (owns(queue)) onCloseQueue?.(queue);
      else if (before.onCloseQueue) before.onCloseQueue(queue);
      else door.endQueue(queue, 'closed by us');
    };
    return port;
  }

  #refuse(queue: QueueId): void {
    this.door.queues.delete(queue);
    this.door.emit({
      kind: 'connectFailed',
      queue,
      failure: 'unreachable',
      reason: ERROR_NO_ROUTE,
      privateData: new Uint8Array(),
      message: 'no route',
    });
  }

  connecting(options: Options = {}): Promise<MultipathSubsystem> {
    const paths = [...this.ports.keys()].map((address) => ({ address }));
    const connecting = MultipathSubsystem.connect(
      { nqn: NQN, paths, ...options },
      this.environment,
    );
    void connecting.then(
      (subsystem) => this.connected.push(subsystem),
      () => undefined,
    );
    return connecting;
  }

  /** Every path has been tried when it resolves. */
  async connect(options: Options = {}): Promise<MultipathSubsystem> {
    const subsystem = await this.connecting(options);
    await settle();
    return subsystem;
  }

  /** Time passes in small steps, and what it sets off happens in between. */
  async pass(ms: number): Promise<void> {
    await settle();
    for (let left = ms; left > 0; left -= STEP_MS) {
      this.clock.advance(Math.min(STEP_MS, left));
      await settle();
    }
  }

  /** The queues over paths, of whichever namespace. */
  get parked(): number {
    return [...this.door.pathQueues.values()].reduce((sum, { parked }) => sum + parked, 0);
  }

  /** Nothing is left of whatever was connected: no timer, no handle. */
  expectNothingLeft(): void {
    const { door, clock } = this;
    expect(
      {
        timers: clock.pending,
        queues: door.queues.size,
        pathQueues: door.pathQueues.size,
        buffers: door.buffers.size,
        attachments: door.attachments.size,
        devices: door.devices.size,
        started: door.started,
      },
      'what is left',
    ).to.deep.equal({
      timers: 0,
      queues: 0,
      pathQueues: 0,
      buffers: 0,
      attachments: 0,
      devices: 0,
      started: undefined,
    });
  }
}

/** Runs over two controllers, and checks that nothing is left at the end. */
export async function withFabric(run: (fabric: Fabric) => Promise<void>): Promise<void> {
  const fabric = new Fabric();
  try {
    await run(fabric);
    await settle();
    fabric.expectNothingLeft();
  } finally {
    // After a failure the process shall end all the same.
    for (const subsystem of fabric.connected) void subsystem.disconnect();
  }
}

export function stateOf(subsystem: MultipathSubsystem, endpoint: string): string | undefined {
  return subsystem.paths.find((path) => path.endpoint === endpoint)?.state;
}

export function statesOf(subsystem: MultipathSubsystem): string[] {
  return subsystem.paths.map(({ state }) => state);
}

/** Whether a promise has settled, and how. */
export function outcomeOf(promise: Promise<unknown>): { readonly now: string } {
  const outcome = { now: 'pending' };
  promise.then(
    () => (outcome.now = 'resolved'),
    (error: unknown) => (outcome.now = error instanceof Error ? error.message : String(error)),
  );
  return outcome;
}
