/**
 * A host in a process of its own, to be stopped or killed: connects, says which life of the controller it has, sends one block of
 * 'X' to LBA 0, says so, and stays.
 *   stale-writer.ts ADDRESS NQN HOSTNQN HOSTID
 */
import { connect } from '../../initiator/index.ts';

const [address = '', nqn = '', hostNqn = '', hostId = ''] = process.argv.slice(2);
const controller = await connect({ address, nqn, hostNqn, hostId });
const { data, cntlid } = controller;
process.stdout.write(`${JSON.stringify({ cntlid, ciu: data.ciu, cirn: data.cirn.toString() })}\n`);
controller
  .namespace(1)
  .write(0, Buffer.alloc(512, 'X'))
  .catch(() => undefined);
setTimeout(() => process.stdout.write('sent\n'), 100);
setInterval(() => undefined, 1000);
