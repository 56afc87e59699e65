import { expect } from 'chai';
import { readExchanges } from '../../support/captures.ts';
import type { Exchange } from '../../support/captures.ts';
import { Cqe } from '../../../native/wire/cqe.ts';
import { ConnectData } from '../../../native/wire/fabrics.ts';
import { Rig } from './support.ts';
import type { Answer } from './support.ts';

const SUBSYSTEM = ConnectData.decode(
  readExchanges('main-v4')
    .flat()
    .find(({ sqe, qid }) => qid === 1 && sqe[0] === 0x7f)?.sent ?? Buffer.alloc(1024),
).subnqn;

/** Commands that a Linux host sent to a Linux target, in order, and what ours answers. */
async function replay(rig: Rig, commands: readonly Exchange[], qid: number): Promise<Answer[]> {
  const queue = await rig.queue(qid);
  const answers: Answer[] = [];
  for (const { sqe, sent, cqe } of commands) {
    if (cqe) answers.push(await queue.send(sqe, sent));
    else queue.post(sqe, sent);
  }
  return answers;
}

function name({ sqe }: Exchange): string {
  const opcode = sqe[0] ?? 0;
  const sub = opcode === 0x7f ? (sqe[4] ?? 0) : sqe.readUInt32LE(40);
  return `${opcode.toString(16)}/${sub.toString(16)}`;
}

describe('bring-up by a Linux host, replayed from a capture', () => {
  let rig: Rig;
  beforeEach(async () => {
    rig = await Rig.start({
      ports: [{ address: '10.9.0.1' }],
      subsystems: [{ nqn: SUBSYSTEM, namespaces: [{ memory: '64M' }] }],
    });
  });
  afterEach(() => rig.stop());

  it('answers discovery as the kernel target does', async () => {
    const [commands = []] = readExchanges('main-v4');
    const answers = await replay(rig, commands, 0);
    expect(answers.map(({ status }) => status)).to.deep.equal(answers.map(() => 'success'));
    const done = commands.filter(({ cqe }) => cqe);
    answers.forEach((answer, index) => {
      const exchange = done[index];
      expect(answer.data.length, name(exchange as Exchange)).to.equal(exchange?.received.length);
    });
    // The last one is CSTS: shutdown complete.
    expect(answers.at(-1)?.result).to.satisfy((csts: bigint) => (csts & 0xcn) === 0x8n);
  });

  it('answers the admin queue as the kernel target does', async () => {
    const commands = readExchanges('main-v4')[1] ?? [];
    const answers = await replay(rig, commands, 0);
    const done = commands.filter(({ cqe }) => cqe);
    const different: string[] = [];
    done.forEach((exchange, index) => {
      const theirs = Cqe.decode(exchange.cqe ?? Buffer.alloc(16));
      const ours = answers[index];
      const ok = theirs.sc === 0 && theirs.sct === 0;
      if (ok !== (ours?.status === 'success')) different.push(name(exchange));
      else if (ok) expect(ours?.data.length, name(exchange)).to.equal(exchange.received.length);
    });
    // Identify 05h is answered here, and was not there.
    expect([...new Set(different)].sort()).to.deep.equal(['6/5']);
    const result = (key: string): bigint | undefined =>
      answers[done.findIndex((exchange) => name(exchange) === key)]?.result;
    expect(result('7f/1')).to.equal(1n);
    expect(result('a/f')).to.equal(5000n);
    // The host asks for two, 0-based.
    expect(result('9/7')).to.equal(0x0001_0001n);
    expect(result('a/7')).to.equal(0x0001_0001n);
    expect(answers.at(-1)?.result).to.satisfy((csts: bigint) => (csts & 0xcn) === 0x8n);
  });

  for (const capture of ['main-v4-k61', 'main-v6', 'main-v4-mtu4096', 'loss-v4']) {
    it(`takes the Connect commands of ${capture}`, async () => {
      const queues = readExchanges(capture);
      const connects = queues.map(([first]) => first).filter((first) => first !== undefined);
      const admin = connects.filter(({ qid }) => qid === 0).at(-1);
      if (!admin) throw new Error('no admin queue');
      const queue = await rig.queue(0);
      const nqn = ConnectData.decode(admin.sent).subnqn;
      if (nqn !== SUBSYSTEM) await rig.target.addSubsystem({ nqn });
      expect((await queue.send(admin.sqe, admin.sent)).status).to.equal('success');
      await queue.enable();
      for (const io of connects.filter(({ qid }) => qid > 0)) {
        const answer = await (await rig.queue(io.qid)).send(io.sqe, io.sent);
        expect([answer.status, answer.result]).to.deep.equal(['success', 1n]);
      }
    });
  }
});
