/** A failover host with one path: a controller of the initiator, whose end is the end of its I/O. */
import { EventEmitter } from 'node:events';
import { connect } from '../../initiator/index.ts';
import type { ConnectOptions, Controller, Namespace } from '../../initiator/index.ts';
import type { FailoverHost, FailoverHostEvents, PathState, PathView } from './host.ts';

export class SinglePathHost extends EventEmitter<FailoverHostEvents> implements FailoverHost {
  readonly io: Namespace;
  readonly survivesLostPaths = false;
  readonly followsAna = false;
  readonly #controller: Controller;
  #state: PathState = 'live';

  private constructor(controller: Controller, nsid: number) {
    super();
    this.#controller = controller;
    this.io = controller.namespace(nsid);
    controller.on('disconnected', ({ message }) => {
      this.#state = 'lost';
      this.emit('pathChanged', { path: controller.endpoint, state: 'lost', reason: message });
    });
  }

  static async connect(options: ConnectOptions, nsid: number): Promise<SinglePathHost> {
    const controller = await connect(options);
    try {
      return new SinglePathHost(controller, nsid);
    } catch (error) {
      await controller.disconnect();
      throw error;
    }
  }

  get paths(): readonly PathView[] {
    return [{ path: this.#controller.endpoint, state: this.#state }];
  }

  close(): Promise<void> {
    return this.#controller.disconnect();
  }
}
