/** Every method of the control socket. The discovery document and docs/control.md are derived from these rows. */
import { ANA_METHODS } from './ana-methods.ts';
import { CONFIG_METHODS } from './config-methods.ts';
import { discoverMethod, discoveryDocument } from './openrpc.ts';
import { HOST_METHODS } from './host-methods.ts';
import type { ControlTools, Method } from './method.ts';
import { NAMESPACE_METHODS } from './namespace-methods.ts';
import { PORT_METHODS } from './port-methods.ts';
import { SUBSYSTEM_METHODS } from './subsystem-methods.ts';
import { TARGET_METHODS } from './target-methods.ts';

const DISCOVER = discoverMethod<ControlTools>(({ service }) =>
  discoveryDocument(METHODS, service.version),
);

export const METHODS: readonly Method[] = [
  ...TARGET_METHODS,
  ...CONFIG_METHODS,
  ...SUBSYSTEM_METHODS,
  ...NAMESPACE_METHODS,
  ...HOST_METHODS,
  ...PORT_METHODS,
  ...ANA_METHODS,
  DISCOVER,
];
