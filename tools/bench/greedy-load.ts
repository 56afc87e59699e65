/**
 * Hosts at depth 127, all controllers of this process on one reactor. Says `ready` to its parent when they are connected, and
 * loads the target when it is told to.
 *   greedy-load.js ADDRESS NQN HOSTS SECONDS CORE
 */
import { once } from 'node:events';
import { BEYOND_MS, host, load } from './load-host.ts';

const [address = '', nqn = '', count = '7', seconds = '2', core = '0'] = process.argv.slice(2);

const hosts = [];
for (let i = 0; i < Number(count); i++) hosts.push(await host(address, nqn, Number(core)));
// The parent died.
const orphaned = (): never => process.exit(1);
process.once('disconnect', orphaned);
process.send?.('ready');
await once(process, 'message');
await Promise.all(hosts.map((each) => load(each, 127, Number(seconds) * 1000 + BEYOND_MS)));
for (const each of hosts) await each.disconnect();
process.off('disconnect', orphaned);
process.disconnect();
