/** Who this host says it is, from files, and without. */
import { expect } from 'chai';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ArgumentError } from '../../../initiator/errors.ts';
import { defaultFolders, hostIdentity } from '../../../initiator/host-identity.ts';
import type { HostIdentityFolders } from '../../../initiator/host-identity.ts';
import { isUuid, nqnProblem } from '../../../native/common/nqn.ts';

const UUID = '0f1e2d3c-4b5a-4678-8a9b-acbdcedfe0f1';
const UUID_NQN = `nqn.2014-08.org.nvmexpress:uuid:${UUID}`;
const NAMED = 'nqn.2024-01.org.example:host7';

describe('host identity', () => {
  let root: string;
  let folders: HostIdentityFolders;

  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'nvmeof-identity-'));
    folders = { system: join(root, 'etc'), user: join(root, 'home', 'nvmeof') };
    mkdirSync(folders.system);
  });

  afterEach(() => {
    rmSync(root, { recursive: true });
  });

  const put = (name: string, text: string): void => {
    writeFileSync(join(folders.system, name), text);
  };

  it('comes from /etc/nvme when it is there', () => {
    put('hostnqn', `${NAMED}\n`);
    put('hostid', `${UUID.toUpperCase()}\n`);
    expect(hostIdentity({}, folders)).to.deep.equal({ hostNqn: NAMED, hostId: UUID });
  });

  it('takes the id from the NQN when only that is there', () => {
    put('hostnqn', UUID_NQN);
    expect(hostIdentity({}, folders)).to.deep.equal({ hostNqn: UUID_NQN, hostId: UUID });
    put('hostnqn', NAMED);
    const { hostId } = hostIdentity({}, folders);
    expect(isUuid(hostId)).to.equal(true);
    expect(hostIdentity({}, folders).hostId).to.equal(hostId);
  });

  it('is made once and kept when there is none, or an empty one', () => {
    for (const text of [undefined, '', '\n', '  \n']) {
      if (text !== undefined) put('hostnqn', text);
      const first = hostIdentity({}, folders);
      expect(nqnProblem(first.hostNqn)).to.equal(undefined);
      expect(first.hostNqn.endsWith(first.hostId)).to.equal(true);
      expect(hostIdentity({}, folders)).to.deep.equal(first);
      expect(readFileSync(join(folders.user, 'hostnqn'), 'utf8')).to.equal(`${first.hostNqn}\n`);
    }
  });

  it('replaces an empty kept file', () => {
    mkdirSync(folders.user, { recursive: true });
    writeFileSync(join(folders.user, 'hostnqn'), '');
    const { hostNqn } = hostIdentity({}, folders);
    expect(readFileSync(join(folders.user, 'hostnqn'), 'utf8').trim()).to.equal(hostNqn);
  });

  it('lives as long as the process when nothing can be written', () => {
    const blocked = { system: folders.system, user: '/dev/null/nvmeof' };
    const first = hostIdentity({}, blocked);
    expect(nqnProblem(first.hostNqn)).to.equal(undefined);
    expect(hostIdentity({}, blocked)).to.deep.equal(first);
  });

  it('given by the caller wins, and does not borrow the id of another NQN', () => {
    put('hostnqn', NAMED);
    put('hostid', UUID);
    const other = 'nqn.2024-01.org.example:other';
    expect(hostIdentity({ hostNqn: other }, folders).hostId).not.to.equal(UUID);
    expect(hostIdentity({ hostNqn: NAMED }, folders).hostId).to.equal(UUID);
    expect(hostIdentity({ hostNqn: other, hostId: UUID }, folders).hostId).to.equal(UUID);
  });

  it('refuses what is no NQN or no UUID, and says where it stood', () => {
    put('hostnqn', 'iqn.2001-04.com.example:x');
    expect(() => hostIdentity({}, folders)).to.throw(ArgumentError, 'etc/hostnqn');
    put('hostnqn', NAMED);
    put('hostid', 'not-a-uuid');
    expect(() => hostIdentity({}, folders)).to.throw(ArgumentError, 'etc/hostid');
    put('hostid', '00000000-0000-0000-0000-000000000000');
    expect(() => hostIdentity({}, folders)).to.throw(ArgumentError, 'is zero');
    expect(() => hostIdentity({ hostNqn: '' }, folders)).to.throw(ArgumentError, 'is empty');
    expect(() => hostIdentity({ hostId: '' }, folders)).to.throw(ArgumentError, 'is not a UUID');
  });

  it('keeps its file below the configuration folder of the user', () => {
    expect(defaultFolders({ XDG_CONFIG_HOME: '/x' })).to.deep.equal({
      system: '/etc/nvme',
      user: '/x/nvmeof',
    });
    expect(defaultFolders({}).user).to.match(/\/\.config\/nvmeof$/);
  });
});
