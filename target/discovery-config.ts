/** The discovery subsystem as if it stood in the configuration: every target has it. */
import { CNTLID_MAX, DISCOVERY_NQN } from '../native/wire/fabrics.ts';
import { COMMAND_QUIESCE_MS_DEFAULT } from './config.ts';
import type { SubsystemConfig } from './config.ts';

export const DISCOVERY_CONFIG: SubsystemConfig = {
  nqn: DISCOVERY_NQN,
  model: 'nvmeof discovery',
  allowAnyHost: true,
  hosts: [],
  cntlids: { first: 1, last: CNTLID_MAX },
  commandQuiesceMs: COMMAND_QUIESCE_MS_DEFAULT,
  namespaces: [],
  ana: [],
};
