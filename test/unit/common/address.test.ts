import { expect } from 'chai';
import {
  formatAddress,
  formatEndpoint,
  isLoopback,
  isWildcard,
  parseAddress,
  parseEndpoint,
  sameAddress,
} from '../../../native/common/address.ts';
import { NvmeofError } from '../../../native/common/errors.ts';

describe('addresses', () => {
  for (const [text, formatted, family] of [
    ['127.0.0.1', '127.0.0.1', 4],
    ['::1', '::1', 6],
    ['[::1]', '::1', 6],
    ['::', '::', 6],
    ['2001:0DB8:0000:0000:0000:0000:0000:0001', '2001:db8::1', 6],
    ['2001:db8:1111:2222:3333:4444:5555:6666', '2001:db8:1111:2222:3333:4444:5555:6666', 6],
    ['2001:db8:0:0:1:0:0:1', '2001:db8::1:0:0:1', 6],
    ['2001:db8:0:1:1:1:1:1', '2001:db8:0:1:1:1:1:1', 6],
    ['1::', '1::', 6],
    ['fe80::1%eth0', 'fe80::1%eth0', 6],
    ['[FE80::1%eth0]', 'fe80::1%eth0', 6],
    ['::ffff:127.0.0.1', '127.0.0.1', 4],
    ['::FFFF:7f00:1', '127.0.0.1', 4],
    ['64:ff9b::192.0.2.33', '64:ff9b::c000:221', 6],
  ] as const) {
    it(`${text} reads as ${formatted}`, () => {
      const address = parseAddress(text);
      expect([formatAddress(address), address.family]).to.deep.equal([formatted, family]);
      expect(sameAddress(parseAddress(formatted), address)).to.equal(true);
    });
  }

  for (const text of [
    '',
    'localhost',
    '1.2.3',
    '1.2.3.4.5',
    '256.0.0.1',
    '[127.0.0.1]',
    '[::1',
    ':::',
    '1:2:3:4:5:6:7:8:9',
    'fe80::1%',
    'g::1',
  ]) {
    it(`"${text}" is refused`, () => {
      expect(() => parseAddress(text))
        .to.throw(NvmeofError)
        .with.property('code', 'ADDRESS_INVALID');
    });
  }

  it('are equal by value', () => {
    const same = (a: string, b: string): boolean => sameAddress(parseAddress(a), parseAddress(b));
    expect(same('::1', '0:0:0:0:0:0:0:1')).to.equal(true);
    expect(same('::ffff:192.0.2.1', '192.0.2.1')).to.equal(true);
    expect(same('::1', '127.0.0.1')).to.equal(false);
    expect(same('fe80::1%a', 'fe80::1%b')).to.equal(false);
    expect(same('fe80::1%a', 'fe80::1')).to.equal(true);
  });

  it('know wildcards and loopback', () => {
    expect(
      ['0.0.0.0', '::', '::1', '1.0.0.0'].map((text) => isWildcard(parseAddress(text))),
    ).to.deep.equal([true, true, false, false]);
    expect(
      ['127.9.9.9', '::1', '::', '128.0.0.1'].map((text) => isLoopback(parseAddress(text))),
    ).to.deep.equal([true, true, false, false]);
  });

  it('carry a port after a colon, IPv6 only in brackets', () => {
    const parse = (text: string): string => formatEndpoint(parseEndpoint(text, 4420));
    expect(parse('192.0.2.1')).to.equal('192.0.2.1:4420');
    expect(parse('192.0.2.1:8009')).to.equal('192.0.2.1:8009');
    expect(parse('::1')).to.equal('[::1]:4420');
    expect(parse('[::1]:65535')).to.equal('[::1]:65535');
    expect(parse('[fe80::1%lo]:1')).to.equal('[fe80::1%lo]:1');
    expect(parse('::1:4420')).to.equal('[::1:4420]:4420');
    for (const bad of ['1.2.3.4:', '1.2.3.4:0', '1.2.3.4:65536', '[::1]:x', '[::1]4420', 'a:1']) {
      expect(() => parse(bad), bad).to.throw(NvmeofError);
    }
  });
});
