/** Paths that follow discovery services: what is added, what is removed and what is not, and services that fail. */
import { expect } from 'chai';
import { ArgumentError, ConnectError } from '../../../../initiator/errors.ts';
import { ConnectCommand } from '../../../../native/wire/fabrics.ts';
import type { DiscoveryLogHeader } from '../../../../native/wire/logs.ts';
import { rejection, settle } from '../support.ts';
import { FakeServices, FakeSink, RECONNECT_MS, entry, referral } from './discovery-support.ts';

const A = '127.0.0.1:4420';
const B = '127.0.0.2:4420';
const C = '127.0.0.3:4420';
const P1 = '127.0.1.1:4420';
const P2 = '127.0.1.2:4420';
const P3 = '127.0.1.3:4420';
const specOf = (endpoint: string): { address: string } => ({
  address: endpoint.split(':')[0] ?? '',
});
const entryOf = (endpoint: string): ReturnType<typeof entry> => entry(specOf(endpoint).address);
const referralTo = (endpoint: string): ReturnType<typeof entry> =>
  referral(specOf(endpoint).address);

interface Following {
  readonly services: FakeServices;
  readonly sink: FakeSink;
  readonly warnings: string[];
  readonly discovery: ReturnType<FakeServices['follow']>['discovery'];
}

/** Follows A, which lists `first`. What it opened must be gone when it is closed. */
async function following(
  first: readonly string[],
  run: (scope: Following) => Promise<void>,
  prepare: (scope: Pick<Following, 'services' | 'sink'>) => void = () => undefined,
): Promise<void> {
  const services = new FakeServices();
  const sink = new FakeSink();
  services.list(A, first.map(entryOf));
  prepare({ services, sink });
  const { discovery, warnings } = services.follow([specOf(A)], sink);
  await settle();
  try {
    await run({ services, sink, warnings, discovery });
  } finally {
    await discovery.close();
  }
  const { door, clock } = services.bench;
  expect(door.queues.size).to.equal(0);
  expect(door.devices.size).to.equal(0);
  expect(clock.pending).to.equal(0);
  expect(discovery.services.map(({ state }) => state)).to.satisfy((states: readonly string[]) =>
    states.every((state) => state === 'closed'),
  );
}

describe('paths that follow discovery', () => {
  it('come with the first answer, and with each event', async () => {
    await following([P1], async ({ services, sink, warnings, discovery }) => {
      expect(sink.endpoints).to.deep.equal([P1]);
      const told: string[] = [];
      discovery.on('pathAdded', (endpoint) => told.push(`+${endpoint}`));
      discovery.on('pathRemoved', (endpoint) => told.push(`-${endpoint}`));
      await services.change(A, [P1, P2].map(entryOf));
      await services.change(A, [P2, P3].map(entryOf));
      expect(sink.endpoints).to.deep.equal([P2, P3]);
      expect(told).to.deep.equal([`+${P2}`, `+${P3}`, `-${P1}`]);
      expect(warnings).to.deep.equal([]);
      expect(services.connects).to.deep.equal([A]);
      expect(discovery.services[0]).to.deep.include({
        endpoint: A,
        state: 'live',
        reason: '',
        referredBy: undefined,
        generation: 3n,
        paths: [P2, P3],
      });
    });
  });

  it('are followed over a connection with keep alives', async () => {
    await following([P1], async ({ services }) => {
      const { peer } = services.bench;
      const connect = peer.commands.find((each) => peer.nameOf(each) === 'Connect 0');
      expect(connect && ConnectCommand.decode(connect.sqe).kato).to.equal(30_000);
      await services.pass(15_000);
      expect(peer.log.filter((name) => name === 'keepAlive')).to.have.length(1);
    });
  });

  it('stay when the service is lost; what its next answer lists counts', async () => {
    await following([P1, P2], async ({ services, sink, discovery }) => {
      services.logs.delete(A);
      await services.drop(A);
      expect(discovery.services[0]).to.include({ state: 'reconnecting' });
      for (let attempt = 0; attempt < 20; attempt += 1) await services.pass(RECONNECT_MS);
      expect(services.connects.length).to.be.within(20, 24);
      expect(sink.calls).to.deep.equal([`add ${P1}`, `add ${P2}`]);
      services.list(A, [entryOf(P2)]);
      await services.pass(RECONNECT_MS);
      await settle();
      expect(sink.endpoints).to.deep.equal([P2]);
      expect(discovery.services[0]).to.include({ state: 'live', reason: '' });
    });
  });

  it('are looked for again after the delay when there was no answer at all', async () => {
    const prepare = ({ services }: Pick<Following, 'services'>): void => {
      services.logs.delete(A);
    };
    const run = async ({ services, sink, warnings }: Following): Promise<void> => {
      expect(warnings).to.have.length(1);
      expect(warnings[0]).to.match(/^discovery service 127\.0\.0\.1:4420: nobody answers/);
      await services.pass(RECONNECT_MS * 0.49);
      expect(services.connects).to.have.length(1);
      services.list(A, [entryOf(P1)]);
      await services.pass(RECONNECT_MS * 0.51);
      expect(services.connects).to.have.length(2);
      expect(sink.endpoints).to.deep.equal([P1]);
    };
    await following([], run, prepare);
  });

  const hostile: readonly (readonly [string, Partial<DiscoveryLogHeader>, RegExp])[] = [
    ['NUMREC 2^54 + 2', { numrec: 2n ** 54n + 2n }, /NUMREC is 18014398509481986/],
    ['NUMREC 2^64 - 1', { numrec: 2n ** 64n - 1n }, /NUMREC is 18446744073709551615/],
    ['NUMREC 100000', { numrec: 100_000n }, /NUMREC is 100000/],
    ['RECFMT 1', { recfmt: 1 }, /RECFMT is 1/],
  ];
  for (const [name, header, problem] of hostile) {
    it(`stay when a log has ${name}, which is asked for again after the delay`, async () => {
      await following([P1, P2], async ({ services, sink, warnings, discovery }) => {
        services.list(A, [entryOf(P1)], header);
        services.reads = 0;
        await services.pass(RECONNECT_MS / 2);
        for (let event = 0; event < 10; event += 1) {
          services.tell(A);
          await settle();
        }
        // Each event reads the head of the log to be heard again; ours was one read.
        expect(services.reads).to.equal(10 + 1);
        expect(warnings).to.have.length(1);
        expect(warnings[0]).to.match(problem);
        expect(discovery.services[0]?.reason).to.match(problem);
        expect(sink.endpoints).to.deep.equal([P1, P2]);
        services.list(A, [entryOf(P1)]);
        await services.pass(RECONNECT_MS);
        await settle();
        expect(sink.endpoints).to.deep.equal([P1]);
        expect(discovery.services[0]?.reason).to.equal('');
      });
    });
  }

  it('stay when GENCTR never settles, and the readings are few', async () => {
    await following([P1, P2], async ({ services, sink, warnings }) => {
      services.onRead = () => {
        services.list(A, [entryOf(P1)]);
      };
      services.reads = 0;
      await services.pass(RECONNECT_MS / 2);
      services.tell(A);
      await settle();
      expect(services.reads).to.be.at.most(1 + 1 + 5 * 2);
      expect(warnings).to.have.length(1);
      expect(warnings[0]).to.match(/GENCTR changed/);
      expect(sink.endpoints).to.deep.equal([P1, P2]);
      services.onRead = () => undefined;
    });
  });

  it('are not read more often than events may come', async () => {
    await following([P1], async ({ services }) => {
      await services.pass(RECONNECT_MS);
      services.reads = 0;
      for (let event = 0; event < 50; event += 1) {
        services.tell(A);
        await settle();
      }
      // One read of the head for each event; our reading of three once.
      expect(services.reads).to.equal(50 + 3);
      await services.pass(100);
      expect(services.reads).to.equal(50 + 2 * 3);
    });
  });

  it('are read at intervals from a service without events', async () => {
    const prepare = ({ services }: Pick<Following, 'services'>): void => {
      const { peer } = services.bench;
      peer.controller = { ...peer.controller, oaesDiscovery: false };
    };
    const run = async ({ services, sink }: Following): Promise<void> => {
      services.list(A, [P1, P2].map(entryOf));
      await services.pass(29_999);
      expect(sink.endpoints).to.deep.equal([P1]);
      await services.pass(1);
      expect(sink.endpoints).to.deep.equal([P1, P2]);
    };
    await following([P1], run, prepare);
  });

  it('are many at most', async () => {
    await following([P1], async ({ services, sink, warnings }) => {
      const many = Array.from({ length: 300 }, (_, i) => `127.1.${i >> 8}.${i & 255}:4420`);
      await services.change(A, [...many, P1].map(entryOf));
      expect(sink.endpoints).to.have.length(16).and.to.include(P1);
      expect(warnings).to.have.length(1);
      expect(warnings[0]).to.match(/285 endpoints more than the 16 paths/);
      // In whatever order they are listed: those that are there stay.
      const before = sink.endpoints;
      await services.change(A, [...many.toReversed(), P1].map(entryOf));
      expect(sink.endpoints).to.deep.equal(before);
    });
  });

  it('are there while any service lists them', async () => {
    const services = new FakeServices();
    const sink = new FakeSink();
    services.list(A, [P1, P2].map(entryOf));
    services.list(B, [P2, P3].map(entryOf));
    const { discovery } = services.follow([specOf(A), specOf(B)], sink);
    await settle();
    try {
      expect(sink.endpoints).to.have.members([P1, P2, P3]);
      await services.change(A, []);
      expect(sink.endpoints).to.have.members([P2, P3]);
      services.logs.delete(A);
      await services.drop(A);
      await services.change(B, [entryOf(P3)]);
      expect(sink.endpoints).to.deep.equal([P3]);
    } finally {
      await discovery.close();
    }
    expect(services.bench.door.queues.size).to.equal(0);
  });
});

describe('discovery leaves alone', () => {
  it('paths that the user named, in whichever spelling', async () => {
    const named = '[::ffff:127.0.1.1]:4420';
    const prepare = ({ sink }: Pick<Following, 'sink'>): void => {
      sink.name(named);
    };
    const run = async ({ services, sink }: Following): Promise<void> => {
      expect(sink.endpoints).to.deep.equal([named, P2]);
      await services.change(A, [entryOf(P2)]);
      await services.change(A, []);
      expect(sink.endpoints).to.include(named);
      expect(sink.calls).to.deep.equal([`add ${P2}`, `remove ${P2}`]);
    };
    await following([P1, P2], run, prepare);
  });

  it('the only path that is live, until another one is', async () => {
    await following([P1, P2], async ({ services, sink }) => {
      sink.move(P2, 'reconnecting');
      await services.change(A, [entryOf(P2)]);
      expect(sink.endpoints).to.deep.equal([P1, P2]);
      sink.move(P2, 'live');
      for (let turn = 0; turn < 4; turn += 1) await settle();
      expect(sink.endpoints).to.deep.equal([P2]);
      // Nobody lists it any more, but there is no other.
      await services.change(A, []);
      expect(sink.endpoints).to.deep.equal([P2]);
    });
  });

  it('what the user removed by hand, until it is listed anew', async () => {
    await following([P1, P2], async ({ services, sink }) => {
      await sink.removePath(P2);
      await services.change(A, [P1, P2, P3].map(entryOf));
      expect(sink.endpoints).to.deep.equal([P1, P3]);
      await services.change(A, [P1, P3].map(entryOf));
      await services.change(A, [P1, P2, P3].map(entryOf));
      expect(sink.endpoints).to.deep.equal([P1, P3, P2]);
    });
  });

  it('what was refused or given up, until the log has changed', async () => {
    const prepare = ({ sink }: Pick<Following, 'sink'>): void => {
      sink.refuse.add(P2);
    };
    const run = async ({ services, sink, warnings }: Following): Promise<void> => {
      expect(warnings).to.deep.equal([`path ${P2} was not added: another serial number`]);
      sink.refuse.clear();
      sink.move(P1, 'failed');
      await services.pass(RECONNECT_MS);
      services.tell(A);
      await settle();
      expect(sink.calls).to.deep.equal([`add ${P1}`, `add ${P2}`]);
      await services.change(A, [P1, P2].map(entryOf));
      await settle();
      await settle();
      expect(sink.paths.map(({ endpoint, state }) => [endpoint, state])).to.have.deep.members([
        [P1, 'live'],
        [P2, 'live'],
      ]);
    };
    await following([P1, P2], run, prepare);
  });

  it('everything when it is closed, also while it connects', async () => {
    await following([P1], async ({ sink, discovery }) => {
      await discovery.close();
      sink.move(P1, 'live');
      await settle();
      expect(sink.endpoints).to.deep.equal([P1]);
    });
    const services = new FakeServices();
    services.list(A, [entryOf(P1)]);
    services.bench.peer.hold = (name) => name === 'identify 01';
    const { discovery } = services.follow([specOf(A)], new FakeSink());
    await settle();
    await discovery.close();
    expect(services.bench.door.queues.size).to.equal(0);
    expect(services.bench.clock.pending).to.equal(0);
  });
});

describe('referrals of a discovery service', () => {
  it('are followed, loops and all, and left when they are gone', async () => {
    const prepare = ({ services }: Pick<Following, 'services'>): void => {
      services.list(A, [entryOf(P1), referralTo(A), referralTo(B)]);
      services.list(B, [entryOf(P2), referralTo(A), referralTo(C)]);
      services.list(C, [entryOf(P3), referralTo(B), referralTo(C)]);
    };
    const run = async ({ services, sink, discovery }: Following): Promise<void> => {
      await settle();
      expect(services.connects).to.deep.equal([A, B, C]);
      expect(discovery.services.map(({ endpoint, referredBy }) => [endpoint, referredBy]))
        .to.deep //
        .equal([
          [A, undefined],
          [B, A],
          [C, B],
        ]);
      expect(sink.endpoints).to.have.members([P1, P2, P3]);
      await services.change(A, [entryOf(P1), referralTo(C)]);
      await settle();
      // C refers to B, so both are reached as before; now by another way.
      expect(discovery.services.map(({ referredBy }) => referredBy)).to.have.members([
        undefined,
        A,
        C,
      ]);
      await services.change(A, [entryOf(P1)]);
      await settle();
      expect(discovery.services.map(({ endpoint }) => endpoint)).to.deep.equal([A]);
      expect(sink.endpoints).to.deep.equal([P1]);
    };
    await following([], run, prepare);
  });

  it('come and go a hundred times', async () => {
    await following([P1], async ({ services, sink, discovery }) => {
      services.list(B, [entryOf(P2)]);
      for (let round = 0; round < 100; round += 1) {
        await services.change(A, [entryOf(P1), referralTo(B)]);
        expect(sink.endpoints).to.deep.equal([P1, P2]);
        await services.change(A, [entryOf(P1)]);
        expect(sink.endpoints).to.deep.equal([P1]);
      }
      expect(discovery.services).to.have.length(1);
      expect(services.bench.door.queues.size).to.equal(1);
    });
  });

  it('are told once when there are too many', async () => {
    const many = Array.from({ length: 40 }, (_, i) => referral(`127.2.0.${i + 1}`));
    await following([P1], async ({ services, warnings, discovery }) => {
      await services.change(A, many);
      await services.change(A, many);
      expect(discovery.services).to.have.length(32);
      expect(warnings.filter((text) => text.includes('32 at most'))).to.have.length(1);
    });
  });
});

describe('what discovery found first', () => {
  it('is an error when nobody lists the subsystem, or nobody answers', async () => {
    await following([], async ({ discovery }) => {
      const error = await rejection(discovery.found(), ConnectError);
      expect(error.code).to.equal('CONNECT_UNKNOWN_NQN');
    });
    const silent = ({ services }: Pick<Following, 'services'>): void => {
      services.logs.delete(A);
    };
    const run = async ({ discovery }: Following): Promise<void> => {
      const error = await rejection(discovery.found(), ConnectError);
      expect(error.code).to.equal('CONNECT_NO_ANSWER');
    };
    await following([], run, silent);
  });

  it('may be behind a referral', async () => {
    const prepare = ({ services }: Pick<Following, 'services'>): void => {
      services.list(A, [referralTo(B)]);
      services.list(B, [entryOf(P2)]);
    };
    const run = async ({ discovery }: Following): Promise<void> => {
      const found = await discovery.found();
      expect(found.map(({ endpoint }) => endpoint)).to.deep.equal([P2]);
    };
    await following([], run, prepare);
  });

  it('is asked of services that can be meant', () => {
    const services = new FakeServices();
    const wrong = (specs: Parameters<FakeServices['follow']>[0], message: RegExp): void => {
      expect(() => services.follow(specs, new FakeSink())).to.throw(ArgumentError, message);
    };
    wrong([], /1 to 32/);
    wrong([{ address: '127.0.0.1' }, { address: '::ffff:127.0.0.1' }], /twice/);
    wrong([{ address: '127.0.0.1', keepAliveMs: 0 }], /keepAliveMs/);
    wrong([{ address: 'target.example' }], /address/);
    expect(services.bench.door.queues.size).to.equal(0);
  });
});
