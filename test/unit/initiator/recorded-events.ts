/** Everything a controller emits, kept for assertions. */
import type { Controller } from '../../../initiator/controller.ts';
import type { AsyncEvent } from '../../../initiator/async-events.ts';
import type { DisconnectedError } from '../../../initiator/errors.ts';
import type { NamespaceChange } from '../../../initiator/namespace-set.ts';

export class ControllerEvents {
  readonly disconnected: DisconnectedError[] = [];
  readonly changes: NamespaceChange[] = [];
  readonly async: AsyncEvent[] = [];
  readonly warnings: Error[] = [];

  constructor(controller: Controller) {
    controller.on('disconnected', (error) => this.disconnected.push(error));
    controller.on('namespacesChanged', (change) => this.changes.push(change));
    controller.on('asyncEvent', (event) => this.async.push(event));
    controller.on('warning', (error) => this.warnings.push(error));
  }
}
