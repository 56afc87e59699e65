/** Captures: one file per device. */
import { expect } from 'chai';
import type { DeviceOptions } from '../../../native/index.ts';
import { captureFile } from '../../../target/capture-file.ts';
import { NQN, Rig } from './support.ts';

describe('capture files', () => {
  it('are named as given for one address, by the address for several', () => {
    const one = new Set(['127.0.0.1']);
    const two = new Set(['127.0.0.1', '::1']);
    expect(captureFile('/tmp/disk.pcap', '127.0.0.1', one)).to.equal('/tmp/disk.pcap');
    expect(captureFile('/tmp/disk.pcap', '127.0.0.1', two)).to.equal('/tmp/disk-127.0.0.1.pcap');
    expect(captureFile('disk.pcap', '::1', two)).to.equal('disk---1.pcap');
    expect(captureFile('disk', 'fe80::1%eth0', two)).to.equal('disk-fe80--1-eth0');
    expect(captureFile('disk.pcap', '127.0.0.2', one)).to.equal('disk-127.0.0.2.pcap');
  });

  it('differ for each device of a target, also one that comes later', async () => {
    const ports = [
      { address: '127.0.0.1' },
      { address: '127.0.0.1', port: 4421 },
      { address: '::1' },
    ];
    const rig = await Rig.start({ ports, subsystems: [{ nqn: NQN }], pcap: 'disk.pcap' });
    await rig.target.addPort({ address: '127.0.0.2' });
    const paths = rig.door.callsOf('openDevice').map(({ args }) => {
      const { address, pcapPath } = args[0] as DeviceOptions;
      return [address, pcapPath];
    });
    expect(paths).to.deep.equal([
      ['127.0.0.1', 'disk-127.0.0.1.pcap'],
      ['::1', 'disk---1.pcap'],
      ['127.0.0.2', 'disk-127.0.0.2.pcap'],
    ]);
    expect(rig.log.filter((line) => line === 'capturing packets')).to.have.length(3);
    await rig.stop();
  });
});
