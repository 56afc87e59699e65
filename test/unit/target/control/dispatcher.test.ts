/** JSON-RPC 2.0 as its specification has it, over the methods of a target. */
import { expect } from 'chai';
import { BATCH_MAX } from '../../../../target/control/dispatcher.ts';
import { RpcCode } from '../../../../target/control/errors.ts';
import { ControlRig } from './support.ts';
import type { Answered } from './support.ts';

const GET = { jsonrpc: '2.0', method: 'log.get' } as const;

describe('JSON-RPC', () => {
  let control: ControlRig;
  beforeEach(async () => {
    control = await ControlRig.start();
  });
  afterEach(() => control.stop());

  for (const id of [1, 0, -1.5, 'abc', '', null]) {
    it(`answers with the id ${JSON.stringify(id)}`, async () => {
      expect(await control.send({ ...GET, id })).to.deep.equal({
        jsonrpc: '2.0',
        id,
        result: { level: 'info' },
      });
    });
  }

  it('does what a notification says, and answers nothing, also when it fails', async () => {
    const notify = (message: object): Promise<string | undefined> =>
      control.dispatcher.answer(JSON.stringify({ jsonrpc: '2.0', ...message }));
    expect(await notify({ method: 'log.set', params: { level: 'debug' } })).to.equal(undefined);
    expect(control.service.logLevel).to.equal('debug');
    expect(await notify({ method: 'log.set', params: { level: 'loud' } })).to.equal(undefined);
    expect(await notify({ method: 'no.such' })).to.equal(undefined);
  });

  const wrong: readonly (readonly [what: string, text: string, code: number, says: RegExp])[] = [
    ['no JSON', '{"jsonrpc": "2.0", "method"', RpcCode.parseError, /^not JSON: /],
    ['nothing but a word', 'hello', RpcCode.parseError, /^not JSON: /],
    ['an empty batch', '[]', RpcCode.invalidRequest, /batch is empty/],
    ['a number', '7', RpcCode.invalidRequest, /no request/],
    ['null', 'null', RpcCode.invalidRequest, /no request/],
    ['no version', '{"id":1,"method":"log.get"}', RpcCode.invalidRequest, /jsonrpc: must be "2.0"/],
    ['version 1', '{"jsonrpc":"1.0","id":1,"method":"x"}', RpcCode.invalidRequest, /must be "2.0"/],
    [
      'a method that is a number',
      '{"jsonrpc":"2.0","id":1,"method":1}',
      RpcCode.invalidRequest,
      /method: must be/,
    ],
    ['no method', '{"jsonrpc":"2.0","id":1}', RpcCode.invalidRequest, /method: must be/],
    [
      'params that are text',
      '{"jsonrpc":"2.0","id":1,"method":"log.get","params":"x"}',
      RpcCode.invalidRequest,
      /params: must be/,
    ],
    [
      'an id that is an object',
      '{"jsonrpc":"2.0","id":{},"method":"log.get"}',
      RpcCode.invalidRequest,
      /id: must be/,
    ],
    [
      'a key too many',
      '{"jsonrpc":"2.0","id":1,"method":"log.get","parms":{}}',
      RpcCode.invalidRequest,
      /unknown key "parms"/,
    ],
    [
      'an unknown method',
      '{"jsonrpc":"2.0","id":1,"method":"toString"}',
      RpcCode.methodNotFound,
      /no method "toString"; rpc.discover/,
    ],
    [
      'a prototype',
      '{"jsonrpc":"2.0","id":1,"method":"__proto__"}',
      RpcCode.methodNotFound,
      /no method/,
    ],
    [
      'positional params',
      '{"jsonrpc":"2.0","id":1,"method":"log.set","params":["info"]}',
      RpcCode.invalidParams,
      /must be an object with names/,
    ],
    [
      'a wrong value',
      '{"jsonrpc":"2.0","id":1,"method":"log.set","params":{"level":"loud"}}',
      RpcCode.invalidParams,
      /log.set: level: .*"trace"/,
    ],
  ];
  for (const [what, text, code, says] of wrong) {
    it(`refuses ${what}`, async () => {
      const { error, id } = await control.send(text);
      expect(error?.code).to.equal(code);
      expect(error?.message).to.match(says);
      expect(id).to.equal(text.includes('"id":1') ? 1 : null);
    });
  }

  it('answers a batch in its order, without its notifications', async () => {
    const batch = [
      { jsonrpc: '2.0', id: 'a', method: 'log.set', params: { level: 'debug' } },
      { jsonrpc: '2.0', method: 'log.set', params: { level: 'warn' } },
      7,
      { ...GET, id: 'b' },
      { jsonrpc: '2.0', id: 'c', method: 'no.such' },
    ];
    const answers = (await control.send(batch)) as unknown as Answered[];
    expect(answers.map(({ id, result, error }) => [id, result ?? error?.code])).to.deep.equal([
      ['a', { level: 'debug' }],
      [null, RpcCode.invalidRequest],
      ['b', { level: 'warn' }],
      ['c', RpcCode.methodNotFound],
    ]);
    // One answer is still a batch of answers, and none is none.
    expect(await control.send([{ ...GET, id: 1 }]))
      .to.be.an('array')
      .of.length(1);
    expect(await control.dispatcher.answer(JSON.stringify([GET]))).to.equal(undefined);
    const long = new Array(BATCH_MAX + 1).fill({ ...GET, id: 1 });
    expect((await control.send(long)).error?.code).to.equal(RpcCode.tooLarge);
  });

  it('a mistake of ours is an internal error, and the next request goes on', async () => {
    Object.defineProperty(control.service, 'reload', {
      value: () => {
        throw new TypeError('undefined is not a function');
      },
    });
    const error = await control.refusal('config.reload');
    expect(error).to.include({ code: RpcCode.internalError });
    expect(await control.call('log.get')).to.deep.equal({ level: 'info' });
  });

  it('ten thousand random messages are each answered or refused, and change nothing', async () => {
    const before = control.rig.target.config;
    const pieces = [
      '{',
      '}',
      '[',
      ']',
      '"jsonrpc"',
      ':',
      '"2.0"',
      ',',
      '"id"',
      '1',
      '"method"',
      'null',
      '"port.add"',
      '"params"',
      '\u0000',
      'é',
      '-',
      'e',
    ];
    let seed = 7;
    const random = (below: number): number => {
      seed = (seed * 1103515245 + 12345) % 2147483648;
      return seed % below;
    };
    for (let round = 0; round < 10_000; round++) {
      const text = Array.from({ length: random(20) }, () => pieces[random(pieces.length)]).join('');
      const answer = await control.dispatcher.answer(text);
      expect(JSON.parse(answer ?? '{}'), text).to.be.an('object');
    }
    expect(control.rig.target.config).to.deep.equal(before);
  });
});
