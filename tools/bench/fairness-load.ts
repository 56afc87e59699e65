/**
 * One host at depth 1 beside others at depth 127, each a controller with a queue of its own, all on one reactor: as many processes
 * on one core would show the scheduler's fairness, not the target's. Prints JSON.
 *   fairness-load.js ADDRESS NQN GREEDY SECONDS CORE
 */
import { stdout } from 'node:process';
import { BEYOND_MS, figuresOf, host, load } from './load-host.ts';

const [address = '', nqn = '', count = '7', seconds = '2', core = '0'] = process.argv.slice(2);
const runtimeMs = Number(seconds) * 1000;

const slow = await host(address, nqn, Number(core));
const greedy = [];
for (let i = 0; i < Number(count); i++) greedy.push(await host(address, nqn, Number(core)));
const [result] = await Promise.all([
  load(slow, 1, runtimeMs),
  ...greedy.map((each) => load(each, 127, runtimeMs + BEYOND_MS)),
]);
for (const each of [slow, ...greedy]) await each.disconnect();

stdout.write(`${JSON.stringify(figuresOf(result, Number(seconds)))}\n`);
