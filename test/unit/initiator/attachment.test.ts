/** Attached namespaces: what native is told of them, and when they end. */
import { expect } from 'chai';
import { ArgumentError, DisconnectedError } from '../../../initiator/errors.ts';
import type { AttachOptions } from '../../../native/index.ts';
import { makeBench, rejection, settle } from './support.ts';

describe('an attached namespace', () => {
  it('has the geometry that the controller told', async () => {
    const { door, peer, connect } = makeBench();
    peer.controller = {
      ...peer.controller,
      mdts: 1,
      oncsWriteZeroes: true,
      oncsDatasetManagement: false,
      vwcPresent: true,
    };
    const controller = await connect({ depth: 32, commandTimeoutMs: 7000 });
    controller.attach(1);
    const [options] = door.callsOf('attach').at(-1)?.args as [AttachOptions];
    const namespace = controller.namespace(1);
    expect(options.depth).to.equal(31);
    expect(options.commandTimeoutMs).to.equal(7000);
    expect(options.queues).to.have.length(controller.queues.length);
    expect(options.geometry).to.include({
      nsid: 1,
      lbaBytes: namespace.lbaSize,
      lbaCount: namespace.lbaCount,
      transferBytesMax: 8192,
      readOnly: false,
      writeZeroes: true,
      deallocate: false,
      volatileWriteCache: true,
    });
    await controller.disconnect();
    expect(door.attachments.size).to.equal(0);
  });

  it('is served until it is detached', async () => {
    const { door, connect } = makeBench();
    const controller = await connect();
    const attachment = controller.attach(1);
    attachment.serveNbd('/tmp/nbd.sock');
    expect(door.callsOf('serveNbd').at(-1)?.args.slice(1)).to.deep.equal([
      '/tmp/nbd.sock',
      `${controller.nqn} namespace 1`,
    ]);
    const detached = attachment.detach();
    expect(attachment.detach()).to.equal(detached);
    await detached;
    expect(() => {
      attachment.serveNbd('/tmp/nbd.sock');
    }).to.throw(DisconnectedError);
    await controller.disconnect();
    expect(door.callsOf('detach')).to.have.length(1);
    expect(() => controller.attach(1)).to.throw(DisconnectedError);
  });

  it('must be there', async () => {
    const { connect } = makeBench();
    const controller = await connect();
    expect(() => controller.attach(99)).to.throw(ArgumentError, /no namespace 99/);
    await controller.disconnect();
  });

  it('ends with a connection that is lost', async () => {
    const { door, connect } = makeBench();
    const controller = await connect();
    controller.attach(1);
    const lost = new Promise((resolve) => controller.once('disconnected', resolve));
    door.endQueue([...door.queues.keys()].at(-1) ?? 0, 'gone');
    await lost;
    await settle();
    expect(door.attachments.size).to.equal(0);
    await rejection(controller.identify(), DisconnectedError);
  });
});
