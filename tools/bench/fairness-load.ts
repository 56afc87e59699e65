/**
 * One host at depth 1 beside others at depth 127, which are controllers of another process. They share a core with it: where there
 * are few, what is measured has the scheduler's wake-up in it, alone and in company. Prints JSON.
 *   fairness-load.js ADDRESS NQN GREEDY SECONDS CORE
 */
import { fork, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { stdout } from 'node:process';
import { fileURLToPath } from 'node:url';
import { figuresOf, host, load } from './load-host.ts';

const [address = '', nqn = '', greedy = '7', seconds = '2', core = '0'] = process.argv.slice(2);

async function startGreedy(): Promise<ChildProcess> {
  const child = fork(
    fileURLToPath(new URL('greedy-load.js', import.meta.url)),
    [address, nqn, greedy, seconds, core],
    // A run of the load generator holds a thread of libuv's pool, which has four.
    { env: { ...process.env, UV_THREADPOOL_SIZE: `${Number(greedy) + 4}` } },
  );
  const said: unknown[] = await Promise.race([once(child, 'message'), once(child, 'exit')]);
  if (said[0] !== 'ready') throw new Error(`greedy-load ended with ${String(said[0])}`);
  return child;
}

const child = Number(greedy) === 0 ? undefined : await startGreedy();
const ended = child && once(child, 'exit');
const slow = await host(address, nqn, Number(core));
child?.send('go');
const result = await load(slow, 1, Number(seconds) * 1000);
await slow.disconnect();
const code: unknown = (await ended)?.[0] ?? 0;
if (code !== 0) throw new Error(`greedy-load ended with ${String(code)}`);

stdout.write(`${JSON.stringify(figuresOf(result, Number(seconds)))}\n`);
