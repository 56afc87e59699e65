/**
 * The leak run in a process of its own, so that nothing but the rounds moves its memory: an initiator connects to a target,
 * in this process unless NQN names another one, writes, reads and disconnects, again and again. Writes what was alive, open
 * and resident after a hundred rounds, after half of the others and after all of them to stdout.
 *   leak-worker.ts ADDRESS ROUNDS [NQN]
 */
import { connect } from '../../initiator/index.ts';
import { acquireRuntime } from '../../native/shared-runtime.ts';
import { Target } from '../../target/index.ts';
import { look } from './look.ts';
import type { Look } from './look.ts';

const [address = '', rounds, elsewhere] = process.argv.slice(2);
const nqn = elsewhere ?? 'nqn.2026-11.io.nvmeof:leaks';
const WARM_UP_ROUNDS = 100;

const lease = acquireRuntime();
const target =
  elsewhere === undefined
    ? await Target.start({
        ports: [{ address }],
        subsystems: [{ nqn, namespaces: [{ memory: '16MiB' }] }],
      })
    : undefined;

async function run(count: number): Promise<void> {
  for (let i = 0; i < count; i++) {
    const controller = await connect({ address, nqn, keepAliveMs: 0 });
    const namespace = controller.namespace(1);
    await namespace.write(i % 100, Buffer.alloc(512, i));
    const back = await namespace.read(i % 100, 1);
    if (back[0] !== (i & 255)) throw new Error(`round ${i}: wrong data`);
    await controller.disconnect();
  }
}

const looks: Look[] = [];
for (const count of [WARM_UP_ROUNDS, Number(rounds) / 2, Number(rounds) / 2]) {
  await run(count);
  looks.push(look(lease));
}
process.stdout.write(JSON.stringify(looks));
await target?.close();
lease.release();
