import { expect } from 'chai';
import { HostRegistry } from '../../../initiator/host-registry.ts';

const A = { hostNqn: 'nqn.2024-01.com.example:a', hostId: '11111111-1111-4111-8111-111111111111' };
const B = { hostNqn: 'nqn.2024-01.com.example:b', hostId: '22222222-2222-4222-8222-222222222222' };

describe('the hosts of this process', () => {
  it('may be several, and each may connect often', () => {
    const hosts = new HostRegistry();
    for (const identity of [A, B, A]) hosts.take(identity);
  });

  it('have one identifier for each NQN', () => {
    const hosts = new HostRegistry();
    hosts.take(A);
    expect(() => hosts.take({ ...A, hostId: B.hostId })).to.throw(
      /^host identifier 2222.*: the host nqn\..*:a is connected with the identifier 1111.*; give that one/,
    );
  });

  it('have one NQN for each identifier', () => {
    const hosts = new HostRegistry();
    hosts.take(A);
    expect(() => hosts.take({ ...B, hostId: A.hostId })).to.throw(
      /^host identifier 1111.* is that of the host nqn\..*:a, which is connected; give nqn\..*:b another one/,
    );
    hosts.take(B);
  });

  it('are forgotten with their last connection', () => {
    const hosts = new HostRegistry();
    const leaves = [hosts.take(A), hosts.take(A)];
    const other = { ...A, hostId: B.hostId };
    leaves[0]?.();
    leaves[0]?.();
    expect(() => hosts.take(other)).to.throw(/is connected/);
    leaves[1]?.();
    hosts.take(other);
    expect(() => hosts.take(A)).to.throw(/is connected/);
  });
});
