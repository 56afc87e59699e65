/** `nvmeof discover ADDRESS`: the subsystems a target offers. */
import { discover } from '../../../initiator/index.ts';
import type { DiscoveredPath } from '../../../initiator/index.ts';
import { addTransportOptions, hostPort, transportOptions } from '../arguments.ts';
import type { HostPort, TransportFlags } from '../arguments.ts';
import type { SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';

interface Flags extends TransportFlags {
  readonly json?: boolean;
}

function row(path: DiscoveredPath): string[] {
  const where = path.address.includes(':')
    ? `[${path.address}]:${path.service}`
    : `${path.address}:${path.service}`;
  const nqn = path.problem === undefined ? path.nqn : `${path.nqn} (unusable: ${path.problem})`;
  return [nqn, path.kind, path.transport, where];
}

export const discoverCommand: SubCommand = {
  name: 'discover',
  define(command, context) {
    addTransportOptions(command)
      .summary('list the subsystems of a target')
      .description(
        'Asks the discovery controller of a target which subsystems it offers, and where.',
      )
      .argument('<address[:port]>', 'of the target; port 4420 when none is given', hostPort)
      .option('--json', 'print JSON')
      .action(async (target: HostPort, flags: Flags) => {
        const log = await discover(transportOptions(target, flags));
        if (flags.json === true) context.printJson(log);
        else if (log.paths.length === 0)
          context.print('The target offers no subsystem to this host.');
        else context.print(plainTable(['NQN', 'kind', 'transport', 'address'], log.paths.map(row)));
      });
    addExamples(command, [
      ['a target on this machine', 'nvmeof discover 127.0.0.1'],
      ['NQNs only', "nvmeof discover 192.0.2.7 --json | jq -r '.paths[].nqn'"],
    ]);
  },
};
