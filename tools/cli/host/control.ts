/** Opens the control socket of `nvmeof attach`. */
import { resolve } from 'node:path';
import { messageOf } from '../../../native/common/errors.ts';
import { ControlServer } from '../../../target/index.ts';
import type { CliContext } from '../context.ts';
import { makeSocketFolder } from '../control/default-socket.ts';
import { HOST_SIDE_METHODS } from './methods.ts';
import type { HostTools } from './methods.ts';
import { attachSocket, removeLeftOver } from './sockets.ts';

/** At a path, nowhere (false), or in its default place, which attach does without when it cannot be made. */
export async function openHostControl(
  context: CliContext,
  wanted: string | false | undefined,
  tools: HostTools,
): Promise<ControlServer | undefined> {
  const serve = (path: string): Promise<ControlServer> =>
    ControlServer.serve({ path, tools, methods: HOST_SIDE_METHODS });
  if (wanted === false) return undefined;
  if (wanted !== undefined) return serve(resolve(wanted));
  const path = attachSocket();
  if (path === undefined) return undefined;
  try {
    makeSocketFolder(path);
    const server = await serve(path);
    await removeLeftOver(path);
    return server;
  } catch (error) {
    context.note(`nvmeof: no control socket: ${messageOf(error)}`);
    return undefined;
  }
}
