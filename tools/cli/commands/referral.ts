/** `nvmeof referral`: discovery services elsewhere that a running target tells hosts of. */
import { Argument, Option } from 'commander';
import { z } from 'zod';
import { referralSchema } from '../../../target/config.ts';
import { hostPort } from '../arguments.ts';
import type { HostPort } from '../arguments.ts';
import { perform, verb } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { addExamples } from '../help.ts';
import { plainTable } from '../tables.ts';

interface ReferralFlags extends SharedFlags {
  readonly transport?: 'rdma' | 'tcp';
  readonly nqn?: string;
}

const referrals = z.array(referralSchema);

function show(context: CliContext, all: z.output<typeof referrals>): void {
  const rows = all.map(({ transport, address, port, nqn }) => [
    transport,
    address,
    String(port),
    nqn,
  ]);
  context.print(
    rows.length === 0
      ? 'There is no referral.'
      : plainTable(['transport', 'address', 'port', 'nqn'], rows),
  );
}

const where = (): Argument =>
  new Argument(
    '<address[:port]>',
    'of the discovery service (port 4420 if none is given)',
  ).argParser(hostPort);
const transport = (): Option =>
  new Option('--transport <name>', 'how it is reached').choices(['rdma', 'tcp']).default('rdma');

export const referralCommand: SubCommand = {
  name: 'referral',
  define(command, context) {
    command
      .summary('tell hosts of discovery services elsewhere')
      .description(
        'Discovery services elsewhere, which the discovery log of a running target names. Hosts that wait for changes are told.',
      );
    verb(command, 'list', 'List referrals').action((flags: SharedFlags) =>
      perform(context, flags, { method: 'referral.list', params: {}, result: referrals, show }),
    );
    verb(command, 'add', 'Tell hosts of a discovery service')
      .addArgument(where())
      .addOption(transport())
      .option('--nqn <nqn>', 'its NQN (default: the well-known one)')
      .action((at: HostPort, flags: ReferralFlags) =>
        perform(context, flags, {
          method: 'referral.add',
          params: { ...at, transport: flags.transport, nqn: flags.nqn },
          result: referrals,
          show,
        }),
      );
    verb(command, 'remove', 'Tell hosts of it no more')
      .addArgument(where())
      .addOption(transport())
      .action((at: HostPort, flags: ReferralFlags) =>
        perform(context, flags, {
          method: 'referral.remove',
          params: { ...at, transport: flags.transport },
          result: referrals,
          show,
        }),
      );
    addExamples(command, [
      ['another target', 'nvmeof referral add 192.0.2.8'],
      ['a discovery controller on TCP', 'nvmeof referral add 192.0.2.9:8009 --transport tcp'],
      ['what hosts are told', 'nvmeof referral list --json'],
    ]);
  },
};
