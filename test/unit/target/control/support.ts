/** A target over the fake door with its control methods, called by text, without a socket. */
import type { ControlTools, LogLevel, Service } from '../../../../target/index.ts';
import type { TargetOptions } from '../../../../target/index.ts';
import { Dispatcher } from '../../../../target/control/dispatcher.ts';
import { Gate } from '../../../../target/control/gate.ts';
import { METHODS } from '../../../../target/control/methods.ts';
import { silentLog } from '../../../../target/log.ts';
import { Rig } from '../support.ts';

export class FakeService implements Service {
  readonly version = '1.2.3';
  configFile: string | undefined;
  logLevel: LogLevel = 'info';
  reloads = 0;
  stops = 0;

  reload(): Promise<readonly string[]> {
    this.reloads += 1;
    return Promise.resolve(['add port ::1 4420']);
  }

  stop(): Promise<void> {
    this.stops += 1;
    return Promise.resolve();
  }
}

export interface Answered {
  readonly jsonrpc: '2.0';
  readonly id: unknown;
  readonly result?: unknown;
  readonly error?: {
    readonly code: number;
    readonly message: string;
    readonly data?: { readonly code: string; readonly problems?: readonly { path: string }[] };
  };
}

export class ControlRig {
  readonly rig: Rig;
  readonly service = new FakeService();
  readonly dispatcher: Dispatcher;

  private constructor(rig: Rig) {
    this.rig = rig;
    this.dispatcher = new Dispatcher(METHODS, this.tools, silentLog, new Gate());
  }

  static async start(options?: TargetOptions): Promise<ControlRig> {
    return new ControlRig(await Rig.start(options));
  }

  get tools(): ControlTools {
    return { target: this.rig.target, service: this.service };
  }

  /** The answer to a message that has one. */
  async send(message: unknown): Promise<Answered> {
    const text = await this.dispatcher.answer(
      typeof message === 'string' ? message : JSON.stringify(message),
    );
    if (text === undefined) throw new Error('no answer');
    return JSON.parse(text) as Answered;
  }

  /** The result of a method; an Error with its message when it has none. */
  async call<T = unknown>(method: string, params: object = {}): Promise<T> {
    const { result, error } = await this.send({ jsonrpc: '2.0', id: 1, method, params });
    if (error) throw Object.assign(new Error(error.message), error);
    return result as T;
  }

  /** The error of a method that must fail. */
  async refusal(method: string, params: object = {}): Promise<NonNullable<Answered['error']>> {
    const { error } = await this.send({ jsonrpc: '2.0', id: 1, method, params });
    if (!error) throw new Error(`${method} did not fail`);
    return error;
  }

  async stop(): Promise<void> {
    await this.rig.stop();
  }
}
