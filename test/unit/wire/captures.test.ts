import { expect } from 'chai';
import { captureNames, readExchanges, readMessages } from '../../support/captures.ts';
import type { Exchange } from '../../support/captures.ts';
import { Cqe } from '../../../native/wire/cqe.ts';
import {
  CM_PRIVATE_DATA_BYTES,
  CmReplyPrivateData,
  CmRequestPrivateData,
  ConnectCommand,
  ConnectData,
  ConnectInvalidResult,
  DISCOVERY_NQN,
  PropertyGetCommand,
  PropertySetCommand,
} from '../../../native/wire/fabrics.ts';
import {
  Cns,
  IdentifyController,
  IdentifyNamespace,
  decodeNamespaceDescriptors,
  decodeNamespaceList,
  encodeNamespaceDescriptors,
} from '../../../native/wire/identify.ts';
import type { Layout } from '../../../native/wire/layout.ts';
import {
  CommandsSupportedLog,
  DISCOVERY_ENTRY_BYTES,
  DiscoveryLogEntry,
  DiscoveryLogHeader,
  DiscoverySubtype,
  LogId,
  RdmaProvider,
  SmartLog,
  TransportType,
} from '../../../native/wire/logs.ts';
import { AdminOpcode, FabricsType, IoOpcode } from '../../../native/wire/opcodes.ts';
import { Cap, Cc, Csts, PropertyOffset } from '../../../native/wire/registers.ts';
import {
  DataBlockDescriptor,
  KeyedDataBlockDescriptor,
  SglIdentifier,
  sglLength,
} from '../../../native/wire/sgl.ts';
import {
  BlockCommand,
  DatasetManagementCommand,
  GetFeaturesCommand,
  GetLogPageCommand,
  IdentifyCommand,
  PSDT_SGL,
  SetFeaturesCommand,
  Sqe,
} from '../../../native/wire/sqe.ts';
import { decodeStatus } from '../../../native/wire/status.ts';

/** The view that knows every field of a command. */
function viewFor(sqe: Buffer): Pick<Layout<never>, 'size'> & {
  decode(bytes: Uint8Array): object;
  encode(values: object): Uint8Array;
} {
  const views: Readonly<Record<number, unknown>> = {
    [AdminOpcode.identify]: IdentifyCommand,
    [AdminOpcode.getLogPage]: GetLogPageCommand,
    [AdminOpcode.setFeatures]: SetFeaturesCommand,
    [AdminOpcode.getFeatures]: GetFeaturesCommand,
  };
  const fabrics: Readonly<Record<number, unknown>> = {
    [FabricsType.connect]: ConnectCommand,
    [FabricsType.propertyGet]: PropertyGetCommand,
    [FabricsType.propertySet]: PropertySetCommand,
  };
  const view = sqe[0] === AdminOpcode.fabrics ? fabrics[sqe[4] ?? 0] : views[sqe[0] ?? 0];
  return (view ?? Sqe) as ReturnType<typeof viewFor>;
}

const nvmeCaptures = captureNames().filter((name) => name !== 'verbs-v4');

function all(name: string): Exchange[] {
  return readExchanges(name).flat();
}

function identifies(name: string, cns: number): Exchange[] {
  return all(name).filter(
    ({ sqe, received }) =>
      sqe[0] === AdminOpcode.identify &&
      received.length === 4096 &&
      IdentifyCommand.decode(sqe).cns === cns,
  );
}

function logs(name: string, lid: number): Exchange[] {
  return all(name).filter(
    ({ sqe }) => sqe[0] === AdminOpcode.getLogPage && GetLogPageCommand.decode(sqe).lid === lid,
  );
}

function only<T>(list: readonly T[]): T {
  const [first] = list;
  if (first === undefined) throw new Error('nothing there');
  return first;
}

describe('wire, against the packets of Linux hosts and targets', () => {
  it('finds commands in every NVMe capture', () => {
    for (const name of nvmeCaptures) expect(all(name).length, name).to.be.greaterThan(0);
    expect(all('main-v4').length).to.equal(70);
  });

  for (const name of nvmeCaptures) {
    it(`decodes every capsule of ${name} and encodes the same bytes`, () => {
      for (const { sqe, cqe, frame } of all(name)) {
        const general = Sqe.encode(Sqe.decode(sqe));
        expect(Buffer.from(general), `frame ${frame}`).to.deep.equal(sqe);
        expect(Sqe.decode(sqe).psdt).to.equal(PSDT_SGL);
        const view = viewFor(sqe);
        expect(Buffer.from(view.encode(view.decode(sqe))), `frame ${frame}`).to.deep.equal(sqe);
        if (cqe) expect(Buffer.from(Cqe.encode(Cqe.decode(cqe)))).to.deep.equal(cqe);
      }
    });
  }

  it('reads the SGL of every command, and its length is what was moved', () => {
    const identifiers = new Set<number>();
    for (const { sqe, sent, received, cqe } of nvmeCaptures
      .filter((name) => name !== 'loss-v4')
      .flatMap(all)) {
      const { sgl1, opcode } = Sqe.decode(sqe);
      const identifier = sgl1[15] ?? 0;
      identifiers.add(identifier);
      const Descriptor =
        identifier === SglIdentifier.inCapsule ? DataBlockDescriptor : KeyedDataBlockDescriptor;
      const encoded = (Descriptor as typeof DataBlockDescriptor).encode(
        (Descriptor as typeof DataBlockDescriptor).decode(sgl1),
      );
      expect(encoded).to.deep.equal(sgl1);
      const failed = cqe && decodeStatus(Cqe.decode(cqe).sc).sc !== 0;
      const moved = sent.length + received.length;
      // RDMA data of I/O queues cannot be told apart when several commands run at once.
      if (!failed && [AdminOpcode.identify, AdminOpcode.getLogPage].includes(opcode as never)) {
        expect(sglLength(sgl1)).to.equal(moved);
      }
    }
    expect([...identifiers].sort()).to.deep.equal(
      [SglIdentifier.inCapsule, SglIdentifier.keyed, SglIdentifier.keyedInvalidate].sort(),
    );
  });

  it('reads the private data of connection management', () => {
    const [request, answer] = readMessages('main-v4').filter(({ qpn }) => qpn === 1);
    const requestData = request?.bytes.subarray(24 + 140 + 36) ?? new Uint8Array();
    expect(CmRequestPrivateData.decode(requestData)).to.deep.equal({
      recfmt: 0,
      qid: 0,
      hrqsize: 32,
      hsqsize: 31,
      cntlid: 0,
    });
    const again = CmRequestPrivateData.encode(CmRequestPrivateData.decode(requestData));
    expect(Buffer.from(again)).to.deep.equal(requestData.subarray(0, CM_PRIVATE_DATA_BYTES));
    const replyData = answer?.bytes.subarray(24 + 36) ?? new Uint8Array();
    expect(CmReplyPrivateData.decode(replyData)).to.deep.equal({ recfmt: 0, crqsize: 32 });
  });

  it('reads Connect: command and data', () => {
    const connects = all('main-v4').filter(
      ({ sqe }) => sqe[0] === AdminOpcode.fabrics && sqe[4] === FabricsType.connect,
    );
    expect(connects.length).to.equal(4);
    for (const { sqe, sent, qid } of connects) {
      const data = ConnectData.decode(sent);
      expect(Buffer.from(ConnectData.encode(data))).to.deep.equal(sent);
      expect(ConnectCommand.decode(sqe).qid).to.equal(qid);
      expect(data.cntlid).to.equal(qid === 0 ? 0xffff : 1);
      expect(data.hostnqn).to.match(/^nqn\./);
    }
    const [first, second, io] = connects.map(({ sqe }) => ConnectCommand.decode(sqe));
    expect(first?.kato).to.equal(0);
    expect(second?.kato).to.equal(5000);
    expect(second?.sqsize).to.equal(31);
    expect(io?.sqsize).to.equal(127);
    expect(ConnectData.decode(only(connects).sent).subnqn).to.equal(DISCOVERY_NQN);
  });

  it('reads what a refused Connect points at', () => {
    const { cqe } = only(all('reject-v4'));
    const completion = Cqe.decode(cqe ?? Buffer.alloc(0));
    expect(decodeStatus(completion.sc | (completion.sct << 8)).name).to.equal('connectInvalid');
    expect(completion.dnr).to.equal(true);
    const result = Buffer.alloc(8);
    result.writeBigUInt64LE(completion.result);
    expect(ConnectInvalidResult.decode(result)).to.deep.equal({ ipo: 256, inData: true });
  });

  it('reads the properties a host asks for', () => {
    const properties = all('main-v4').filter(
      ({ sqe, qid }) => sqe[0] === AdminOpcode.fabrics && qid === 0,
    );
    const cap = only(
      properties.filter(
        ({ sqe }) =>
          sqe[4] === FabricsType.propertyGet &&
          PropertyGetCommand.decode(sqe).ofst === PropertyOffset.cap,
      ),
    );
    const value = cap.cqe?.subarray(0, 8) ?? Buffer.alloc(0);
    const decoded = Cap.decode(value);
    expect(decoded).to.include({ mqes: 127, to: 15, css: 0b0100_0001, mpsmin: 0, cqr: false });
    expect(Buffer.from(Cap.encode(decoded))).to.deep.equal(value);
    const enables = properties
      .filter(({ sqe }) => sqe[4] === FabricsType.propertySet)
      .map(({ sqe }) => Cc.decode(sqe.subarray(48, 52)));
    expect(enables.map(({ en, shn }) => [en, shn])).to.deep.equal([
      [false, 0],
      [true, 0],
      [true, 1],
      [false, 0],
      [true, 0],
      [true, 1],
    ]);
    expect(enables[1]).to.include({ css: 6, iosqes: 6, iocqes: 4 });
    const last = properties.at(-1)?.cqe?.subarray(0, 4) ?? Buffer.alloc(0);
    expect(Csts.decode(last)).to.include({ shst: 2 });
  });

  it('reads Identify Controller', () => {
    const [discovery, , io] = identifies('main-v4', Cns.controller);
    for (const page of [discovery, io].flatMap((exchange) => exchange?.received ?? [])) {
      expect(Buffer.from(IdentifyController.encode(IdentifyController.decode(page)))).to.deep.equal(
        page,
      );
    }
    const values = IdentifyController.decode(io?.received ?? Buffer.alloc(0));
    expect(values).to.include({
      cntlid: 1,
      ver: 0x10300,
      kas: 10,
      sqes: 0x66,
      cqes: 0x44,
      mdts: 8,
      ioccsz: 0x104,
      iorcsz: 1,
      icdoff: 0,
      msdbd: 1,
      sglsSupport: 1,
      sglsKeyed: true,
      sglsInCapsuleOffset: true,
      cmicMultiController: true,
      aerl: 3,
      cntrltype: 1,
    });
    expect(IdentifyController.decode(discovery?.received ?? Buffer.alloc(0))).to.include({
      cntrltype: 2,
      subnqn: DISCOVERY_NQN,
    });
  });

  it('reads Identify Namespace, the list, and the descriptors', () => {
    const page = only(identifies('main-v4', Cns.namespace)).received;
    const namespace = IdentifyNamespace.decode(page);
    expect(Buffer.from(IdentifyNamespace.encode(namespace))).to.deep.equal(page);
    expect(namespace.nsze).to.equal(namespace.ncap);
    expect(namespace.lbaf[0]?.lbads).to.equal(9);
    expect(namespace.nmicShared).to.equal(true);
    const list = only(identifies('main-v4', Cns.activeNamespaces)).received;
    expect(decodeNamespaceList(list)).to.deep.equal([1]);
    const descriptorPage = only(identifies('main-v4', Cns.namespaceDescriptors)).received;
    const descriptors = decodeNamespaceDescriptors(descriptorPage);
    expect(descriptors.map(({ type }) => type)).to.include.members([3, 4]);
    expect(Buffer.from(encodeNamespaceDescriptors(descriptors))).to.deep.equal(descriptorPage);
  });

  it('reads the discovery log', () => {
    const pages = logs('main-v4', LogId.discovery);
    const page = pages.at(-1)?.received ?? Buffer.alloc(0);
    const header = DiscoveryLogHeader.decode(page);
    expect(header.recfmt).to.equal(0);
    expect(page.length).to.equal(1024 * (1 + Number(header.numrec)));
    const entries = Array.from({ length: Number(header.numrec) }, (_, index) => {
      const at = DiscoveryLogHeader.size + index * DISCOVERY_ENTRY_BYTES;
      const entry = DiscoveryLogEntry.decode(page, at);
      const bytes = Buffer.from(DiscoveryLogEntry.encode(entry));
      expect(bytes).to.deep.equal(page.subarray(at, at + DISCOVERY_ENTRY_BYTES));
      return entry;
    });
    const nvm = only(entries.filter(({ subtype }) => subtype === DiscoverySubtype.nvm));
    expect(nvm).to.include({
      trtype: TransportType.rdma,
      adrfam: 1,
      cntlid: 0xffff,
      asqsz: 32,
      trsvcid: '4420',
      traddr: '10.9.0.1',
      treqDisableSqFlowControl: true,
      tsasRdmaQptype: 1,
      tsasRdmaPrtype: RdmaProvider.none,
      tsasRdmaCms: 1,
    });
    expect(entries.map(({ subtype }) => subtype)).to.include(DiscoverySubtype.currentDiscovery);
  });

  it('reads SMART and commands-supported logs', () => {
    const smart = only(logs('main-v4', LogId.smart)).received;
    expect(Buffer.from(SmartLog.encode(SmartLog.decode(smart)))).to.deep.equal(smart);
    const effects = only(logs('main-v4', LogId.commandsSupported)).received;
    const decoded = CommandsSupportedLog.decode(effects);
    expect(Buffer.from(CommandsSupportedLog.encode(decoded))).to.deep.equal(effects);
    expect((decoded.admin[AdminOpcode.identify] ?? 0) & 1).to.equal(1);
    expect((decoded.io[IoOpcode.write] ?? 0) & 3).to.equal(3);
  });

  it('reads block commands and deallocation', () => {
    const io = all('main-v4').filter(({ qid }) => qid > 0);
    const writes = io.filter(({ sqe }) => sqe[0] === IoOpcode.write);
    expect(
      writes.map(({ sqe }) => BlockCommand.decode(sqe)).map(({ slba, nlb }) => [slba, nlb]),
    ).to.deep.equal([
      [0x800n, 7],
      [0x1000n, 31],
      [0x2000n, 255],
    ]);
    const dsm = only(io.filter(({ sqe }) => sqe[0] === IoOpcode.datasetManagement));
    expect(DatasetManagementCommand.decode(dsm.sqe)).to.include({ nr: 0, ad: true });
    const failed = io.filter(({ cqe }) => cqe && Cqe.decode(cqe).sc !== 0);
    expect(failed.map(({ sqe }) => BlockCommand.decode(sqe).slba)).to.deep.equal([0x3b9ac9ffn]);
    expect(Cqe.decode(only(failed).cqe ?? Buffer.alloc(0)).dnr).to.equal(true);
  });
});
