/** Leases on the reactors and devices of a process. */
import { expect } from 'chai';
import {
  DeviceInUseError,
  RuntimeInUseError,
  SharedRuntime,
} from '../../../native/shared-runtime.ts';
import type { DeviceOptions } from '../../../native/index.ts';
import { FakeDoor, systemError } from '../../support/fake-door.ts';

function make(): { door: FakeDoor; shared: SharedRuntime } {
  const door = new FakeDoor();
  const shared = new SharedRuntime((options) => {
    door.start({ ...options, onWake: () => undefined });
    return door.runtime;
  });
  return { door, shared };
}

const device = (address: string) => ({ provider: 'soft', address }) as const;

describe('shared runtime', () => {
  it('starts with the first lease, stops with the last, and starts again', () => {
    const { door, shared } = make();
    const first = shared.acquire({ cores: [2, 3] });
    const second = shared.acquire();
    expect(door.callsOf('start')).to.have.length(1);
    expect(first.reactors).to.deep.equal([0, 1]);
    expect(second.reactors).to.deep.equal([0, 1]);
    first.release();
    first.release();
    expect(door.started).not.to.equal(undefined);
    second.release();
    expect(door.started).to.equal(undefined);
    const third = shared.acquire();
    expect(door.callsOf('start')).to.have.length(2);
    expect(third.reactors).to.deep.equal([0]);
    third.release();
  });

  it('gives the reactors asked for, and refuses cores that do not run', () => {
    const { door, shared } = make();
    const lease = shared.acquire({ cores: [4, 5, 6] });
    const some = shared.acquire({ cores: [6, 4] });
    expect(some.reactors).to.deep.equal([2, 0]);
    expect(() => shared.acquire({ cores: [7] })).to.throw(RuntimeInUseError, 'core 7');
    expect(() => shared.acquire({ cores: [4, 4] })).to.throw(RuntimeInUseError);
    some.release();
    lease.release();
    expect(door.started).to.equal(undefined);
  });

  it('opens an address once and closes it with its last lease', () => {
    const { door, shared } = make();
    const lease = shared.acquire();
    const other = shared.acquire();
    const a = lease.openDevice(device('127.0.0.2'));
    const b = other.openDevice(device('127.0.0.2'));
    const c = lease.openDevice(device('127.0.0.3'));
    expect([a.shared, b.shared, c.shared]).to.deep.equal([false, true, false]);
    expect(b.id).to.equal(a.id);
    a.release();
    a.release();
    expect(door.devices.size).to.equal(2);
    b.release();
    expect(door.devices.size).to.equal(1);
    const again = lease.openDevice(device('127.0.0.2'));
    expect(again.shared).to.equal(false);
    again.release();
    c.release();
    expect(door.devices.size).to.equal(0);
    lease.release();
    other.release();
  });

  it('shares a device with faults only among those who want them, and passes these on', () => {
    const { door, shared } = make();
    const lease = shared.acquire();
    const tested = lease.openDevice({ ...device('127.0.0.2'), faultInjection: true });
    const plain = lease.openDevice(device('127.0.0.3'));
    expect(() => lease.openDevice(device('127.0.0.2'))).to.throw(
      DeviceInUseError,
      'fault injection true, not false',
    );
    expect(() => lease.openDevice({ ...device('127.0.0.3'), faultInjection: true })).to.throw(
      DeviceInUseError,
      'fault injection false, not true',
    );
    const faults = { rules: [{ drop: 0.5 }] };
    tested.setFaults(faults);
    expect(() => {
      plain.setFaults(faults);
    }).to.throw(Error, 'not opened for faults');
    expect(door.callsOf('setFaults').map(({ args }) => args)).to.deep.equal([
      [tested.id, faults],
      [plain.id, faults],
    ]);
    lease.release();
  });

  it('refuses a second user of an address what it does not have', () => {
    const { door, shared } = make();
    const lease = shared.acquire();
    const open = { provider: 'auto', pathMtu: 1024, pcapPath: '/tmp/a.pcap' } as const;
    lease.openDevice({ ...open, address: '127.0.0.2' });
    const second = (options: Partial<DeviceOptions>) => () =>
      lease.openDevice({ provider: 'auto', address: '127.0.0.2', ...options }).release();
    const refused: [Partial<DeviceOptions>, string][] = [
      [{ provider: 'verbs' }, 'provider soft, not verbs'],
      [{ pathMtu: 4096 }, 'path MTU 1024, not 4096'],
      [{ pcapPath: '/tmp/b.pcap' }, 'capture file /tmp/a.pcap, not /tmp/b.pcap'],
      [{ icrc: 'full' }, 'ICRC check recovered, not full'],
      [{ socketBufferBytes: 65536 }, 'socket buffer the default, not 65536'],
      [{ localAckTimeout: 18 }, 'local ACK timeout the default, not 18'],
      [{ connectTimeoutMs: 7 }, 'connect timeout the default, not 7'],
      [{ inCapsuleBytesMax: 8192 }, 'in-capsule data 4096, not 8192'],
    ];
    for (const [options, text] of refused) {
      expect(second(options), text).to.throw(DeviceInUseError, `with ${text}; ask for the same`);
    }
    // The same, less, or whatever there is.
    second({})();
    second({ ...open, provider: 'soft', pathMtu: 0, inCapsuleBytesMax: 0 })();
    second({ ...open, pcapPath: '/tmp/../tmp/a.pcap' })();
    expect(door.callsOf('openDevice')).to.have.length(1);
    lease.release();
  });

  it('lets no two devices write one capture file', () => {
    const { shared } = make();
    const lease = shared.acquire();
    const pcapPath = '/tmp/a.pcap';
    const first = lease.openDevice({ ...device('127.0.0.2'), pcapPath });
    const other = () => lease.openDevice({ ...device('127.0.0.3'), pcapPath });
    expect(other).to.throw(DeviceInUseError, '/tmp/a.pcap takes the packets of 127.0.0.2 already');
    first.release();
    expect(other).not.to.throw();
    lease.release();
  });

  it('a device that cannot be opened leaves nothing', () => {
    const { door, shared } = make();
    const lease = shared.acquire();
    door.onOpenDevice = () => {
      throw systemError('EADDRINUSE', 'in use');
    };
    expect(() => lease.openDevice(device('127.0.0.2'))).to.throw('in use');
    door.onOpenDevice = undefined;
    const opened = lease.openDevice(device('127.0.0.2'));
    expect(opened.shared).to.equal(false);
    opened.release();
    lease.release();
  });

  it('closes devices that nobody released with the last lease', () => {
    const { door, shared } = make();
    const lease = shared.acquire();
    const left = lease.openDevice(device('127.0.0.2'));
    lease.release();
    expect(door.devices.size).to.equal(0);
    left.release();
    expect(door.callsOf('closeDevice')).to.have.length(1);
  });

  it('does not start when native cannot, and can try again', () => {
    let fail = true;
    const door = new FakeDoor();
    const shared = new SharedRuntime(() => {
      if (fail) throw new Error('no native part');
      return door.runtime;
    });
    expect(() => shared.acquire()).to.throw('no native part');
    fail = false;
    shared.acquire().release();
  });
});
