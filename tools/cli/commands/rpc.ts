/** `nvmeof rpc METHOD [JSON]`: any method of a running target, as it is. */
import { messageOf } from '../../../native/common/errors.ts';
import { RemoteError, call } from '../control/client.ts';
import { addSharedOptions } from '../control/verb.ts';
import type { SharedFlags } from '../control/verb.ts';
import { CliError } from '../context.ts';
import type { CliContext, SubCommand } from '../context.ts';
import { ExitCode } from '../exit-codes.ts';
import { addExamples } from '../help.ts';

function parseParams(text: string): object {
  let params: unknown;
  try {
    params = JSON.parse(text);
  } catch (error) {
    throw new CliError(ExitCode.usage, `the parameters are not JSON: ${messageOf(error)}`);
  }
  if (typeof params === 'object' && params !== null && !Array.isArray(params)) return params;
  throw new CliError(ExitCode.usage, 'the parameters must be a JSON object with names', {
    remedy: `such as: nvmeof rpc namespace.list '{"nqn": "NQN"}'`,
  });
}

async function rpc(
  context: CliContext,
  method: string,
  text: string,
  flags: SharedFlags,
): Promise<void> {
  try {
    context.printJson(await call(flags.socket, method, parseParams(text)));
  } catch (error) {
    // For scripts the whole error is the answer.
    if (error instanceof RemoteError && flags.json === true)
      context.printJson({ error: error.error });
    throw error;
  }
}

export const rpcCommand: SubCommand = {
  name: 'rpc',
  define(command, context) {
    addSharedOptions(command)
      .summary('call a method of a running target')
      .description(
        'Calls a method of the control socket and prints its result, which is JSON. rpc.discover lists all methods; docs/control.md ' +
          'tells of them. With --json, an error is printed as JSON, too.',
      )
      .argument('<method>', 'such as namespace.list')
      .argument('[params]', 'a JSON object', '{}')
      .action((method: string, params: string, flags: SharedFlags) =>
        rpc(context, method, params, flags),
      );
    addExamples(command, [
      ['every method', 'nvmeof rpc rpc.discover'],
      ['one of them', `nvmeof rpc namespace.list '{"nqn": "NQN"}'`],
    ]);
  },
};
