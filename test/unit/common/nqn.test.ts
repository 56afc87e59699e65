import { expect } from 'chai';
import { nqnProblem, readNqnField, uuidNqn, uuidOfNqn } from '../../../native/common/nqn.ts';
import { NvmeofError, NvmeStatusError } from '../../../native/common/errors.ts';
import { Status } from '../../../native/wire/status.ts';
import { formatUuid, parseUuid, uuidFromName } from '../../../native/common/uuid.ts';

const UUID = 'f81d4fae-7dec-11d0-a765-00a0c91e6bf6';

describe('NQNs', () => {
  it('of both forms are taken', () => {
    for (const nqn of [
      'nqn.2014-08.org.nvmexpress.discovery',
      'nqn.2016-06.io.spdk:cnode1',
      'nqn.1992-08.com.netapp:sn.1234:subsystem.a_b',
      `nqn.2014-08.org.nvmexpress:uuid:${UUID}`,
      `nqn.2014-08.org.nvmexpress:uuid:${UUID.toUpperCase()}`,
      'nqn.2024-12.com.ex-ample:ünïcode',
      `nqn.2024-01.com.example:${'x'.repeat(199)}`,
    ]) {
      expect(nqnProblem(nqn), nqn).to.equal(undefined);
    }
  });

  for (const [nqn, why] of [
    ['', 'is empty'],
    ['nqn.2024-1', '10 bytes'],
    [`nqn.2024-01.com.example:${'x'.repeat(200)}`, '224 bytes'],
    [`nqn.2024-01.com.example:${'ü'.repeat(100)}`, '224 bytes'],
    ['iqn.2024-01.com.example:a', 'start with "nqn."'],
    ['NQN.2024-01.com.example:a', 'start with "nqn."'],
    ['nqn.2024-00.com.example:a', 'month 00'],
    ['nqn.2024-13.com.example:a', 'month 13'],
    ['nqn.24-01.com.example:a', 'form'],
    ['nqn.2024-1.com.example:a', 'form'],
    ['nqn.2024-01.:example', 'form'],
    ['nqn.2024-01.com..example:a', 'domain'],
    ['nqn.2024-01.-com.example:a', 'domain'],
    ['nqn.2024-01.com example:a', 'domain'],
    ['nqn.2024-01.com.example:', 'after the colon'],
    ['nqn.2024-01.com.example:a\nb', 'control'],
    ['nqn.2024-01.com.example:\ufffd', 'damaged'],
    [`nqn.2014-08.org.nvmexpress:uuid:${UUID.slice(0, -1)}`, 'UUID'],
    [`nqn.2014-08.org.nvmexpress:uuid:${UUID}0`, 'UUID'],
    ['nqn.2014-08.org.nvmexpress:uuid:', 'UUID'],
  ] as const) {
    it(`like ${JSON.stringify(nqn.slice(0, 40))} are refused: ${why}`, () => {
      expect(nqnProblem(nqn)).to.contain(why);
    });
  }

  it('on the wire must end with a NUL within 224 bytes', () => {
    const field = (text: string): Uint8Array => {
      const bytes = new Uint8Array(256);
      bytes.set(Buffer.from(text));
      return bytes;
    };
    const name = (length: number): string => 'nqn.2024-01.com.example:'.padEnd(length, 'x');
    expect(readNqnField(field(name(223)))).to.deep.equal({ ok: true, nqn: name(223) });
    for (const length of [224, 255, 256]) {
      expect(readNqnField(field(name(length))).ok, `${length}`).to.equal(false);
    }
    expect(readNqnField(new Uint8Array(256)).ok).to.equal(false);
    const damaged = field(name(30));
    damaged[28] = 0xff;
    expect(readNqnField(damaged).ok).to.equal(false);
    // What stands after the NUL does not matter.
    const trailing = field(name(30));
    trailing[200] = 0x41;
    expect(readNqnField(trailing)).to.deep.equal({ ok: true, nqn: name(30) });
  });

  it('of the UUID form give the UUID back', () => {
    expect(uuidOfNqn(uuidNqn(UUID.toUpperCase()))).to.equal(UUID);
    expect(uuidOfNqn('nqn.2024-01.com.example:a')).to.equal(undefined);
  });
});

describe('UUIDs', () => {
  it('go to bytes and back', () => {
    const bytes = parseUuid(UUID.toUpperCase());
    expect(bytes[0]).to.equal(0xf8);
    expect(formatUuid(bytes)).to.equal(UUID);
    expect(() => parseUuid(UUID.slice(1))).to.throw(NvmeofError, 'is not a UUID');
  });

  it('made from a name follow RFC 9562', () => {
    // Appendix A.4: DNS name space, www.example.com.
    expect(uuidFromName('6ba7b810-9dad-11d1-80b4-00c04fd430c8', 'www.example.com')).to.equal(
      '2ed6657d-e927-568b-95e1-2665a8aea6a2',
    );
  });
});

describe('errors', () => {
  it('carry a stable code, the object and the cause', () => {
    const cause = new Error('below');
    const error = new NvmeofError('THING_BROKEN', 'it broke', { object: '/srv/a', cause });
    expect(error).to.include({
      code: 'THING_BROKEN',
      object: '/srv/a',
      cause,
      name: 'NvmeofError',
    });
  });

  it('of a status say what the table says', () => {
    const error = new NvmeStatusError(Status.lbaOutOfRange | (1 << 14), 'Read', { result: 7n });
    expect(error).to.be.instanceOf(NvmeofError);
    expect(error).to.include({
      code: 'NVME_LBA_OUT_OF_RANGE',
      sct: 0,
      sc: 0x80,
      dnr: true,
      status: 'lbaOutOfRange',
      result: 7n,
      message: 'Read: LBA Out of Range (00/80, do not retry)',
    });
    const unknown = new NvmeStatusError(0x3ff, 'Read');
    expect(unknown).to.include({ code: 'NVME_STATUS_UNKNOWN', sct: 3, sc: 0xff, dnr: false });
    expect(unknown.message).to.contain('Path Related Status ffh');
  });
});
