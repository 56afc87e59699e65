/**
 * Enables and shuts down a controller through its properties (NVMe Base 2.1 sections 3.1.4 and 3.5): straight
 * sequences with a deadline over an injected clock.
 */
import { sleep } from '../native/common/clock.ts';
import type { Clock } from '../native/common/clock.ts';
import {
  Cap,
  Cc,
  CommandSetSelected,
  Crto,
  Csts,
  PropertyOffset,
  ShutdownNotification,
  ShutdownStatus,
  Vs,
} from '../native/wire/registers.ts';
import { propertyGet, propertySet } from './admin.ts';
import { ConnectError } from './errors.ts';
import type { CommandOptions, Queue } from './queue.ts';

const POLL_MS_FIRST = 1;
const POLL_MS_MAX = 100;
const TIMEOUT_UNIT_MS = 500;
const SQE_SIZE_POWER = 6;
const CQE_SIZE_POWER = 4;

/** Bits of CAP.CSS and CAP.CRMS. */
const CSS_NVM = 1 << 0;
const CSS_SEVERAL = 1 << 6;
const CRMS_WITH_MEDIA = 1 << 0;

export interface EnabledController {
  readonly cap: Cap;
  readonly vs: Vs;
  /** As written to CC, for the shutdown. */
  readonly cc: Cc;
}

interface Access {
  readonly queue: Queue;
  readonly clock: Clock;
  readonly options: CommandOptions;
  /** For messages. */
  readonly nqn: string;
}

function unusable({ nqn }: Access, problem: string): ConnectError {
  return new ConnectError(
    'CONNECT_UNUSABLE_CONTROLLER',
    `the controller of "${nqn}" cannot be used: ${problem}`,
    { object: nqn },
  );
}

async function readStatus({ queue, options }: Access): Promise<Csts> {
  return Csts.decode(await propertyGet(queue, PropertyOffset.csts, 4, options));
}

/** Polls CSTS until `done`; false when the time is over. A fatal controller throws. */
async function waitFor(
  access: Access,
  timeoutMs: number,
  done: (status: Csts) => boolean,
): Promise<boolean> {
  const deadline = access.clock.now() + timeoutMs;
  let pause = POLL_MS_FIRST;
  for (;;) {
    const status = await readStatus(access);
    if (done(status)) return true;
    if (status.cfs) throw unusable(access, 'it reports a fatal status (CSTS.CFS)');
    if (access.clock.now() >= deadline) return false;
    await sleep(access.clock, pause);
    pause = Math.min(pause * 2, POLL_MS_MAX);
    access.options.signal?.throwIfAborted();
  }
}

/** How long RDY may take: CAP.TO, or CRTO where there is one (NVMe Base 2.1 section 3.1.4.21). */
async function readyTimeoutMs({ queue, options }: Access, cap: Cap): Promise<number> {
  const units = Math.max(cap.to, 1);
  if ((cap.crms & CRMS_WITH_MEDIA) === 0) return units * TIMEOUT_UNIT_MS;
  const { crwmt } = Crto.decode(await propertyGet(queue, PropertyOffset.crto, 4, options));
  return Math.max(units, crwmt) * TIMEOUT_UNIT_MS;
}

function checkCapabilities(access: Access, cap: Cap): void {
  if (cap.mpsmin !== 0) throw unusable(access, 'CAP.MPSMIN forbids pages of 4 KiB');
  if ((cap.css & (CSS_NVM | CSS_SEVERAL)) === 0) {
    throw unusable(access, 'CAP.CSS offers no NVM command set');
  }
  if (cap.mqes === 0) throw unusable(access, 'CAP.MQES is 0: queues need at least two entries');
}

export async function enableController(access: Access): Promise<EnabledController> {
  const { queue, options } = access;
  const cap = Cap.decode(await propertyGet(queue, PropertyOffset.cap, 8, options));
  checkCapabilities(access, cap);
  const timeoutMs = await readyTimeoutMs(access, cap);
  const cc: Cc = {
    en: false,
    css: (cap.css & CSS_SEVERAL) !== 0 ? CommandSetSelected.allSupported : CommandSetSelected.nvm,
    mps: 0,
    ams: 0,
    shn: ShutdownNotification.none,
    iosqes: SQE_SIZE_POWER,
    iocqes: CQE_SIZE_POWER,
    crime: false,
  };
  const write = (value: Cc): Promise<void> =>
    propertySet(queue, PropertyOffset.cc, Cc.encode(value), options);

  await write(cc);
  const disabled = await waitFor(access, timeoutMs, ({ rdy }) => !rdy);
  if (!disabled) throw notReady(access, timeoutMs, 'disabled');
  const enabled = { ...cc, en: true };
  await write(enabled);
  const ready = await waitFor(access, timeoutMs, ({ rdy, cfs }) => rdy && !cfs);
  if (!ready) throw notReady(access, timeoutMs, 'ready');
  const vs = Vs.decode(await propertyGet(queue, PropertyOffset.vs, 4, options));
  return { cap, vs, cc: enabled };
}

function notReady({ nqn }: Access, timeoutMs: number, state: string): ConnectError {
  return new ConnectError(
    'CONNECT_NOT_READY',
    `the controller of "${nqn}" did not become ${state} within the ${timeoutMs} ms it promises`,
    { object: nqn },
  );
}

/** Normal shutdown: the controller flushes what it holds. False when it did not finish in time. */
export async function shutdownController(
  access: Access,
  cc: Cc,
  timeoutMs: number,
): Promise<boolean> {
  const value = Cc.encode({ ...cc, shn: ShutdownNotification.normal });
  await propertySet(access.queue, PropertyOffset.cc, value, access.options);
  return waitFor(access, timeoutMs, ({ shst }) => shst === ShutdownStatus.complete);
}
