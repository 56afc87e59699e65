/** What is taken from a discovery log, and which services its referrals lead to. */
import { expect } from 'chai';
import { readDiscoveryLog } from '../../../../initiator/discovery.ts';
import {
  answerOf,
  endpointOf,
  sameEndpoint,
} from '../../../../initiator/multipath/discovery-records.ts';
import type {
  FoundEndpoint,
  ServiceAnswer,
} from '../../../../initiator/multipath/discovery-records.ts';
import {
  REFERRAL_DEPTH_MAX,
  SERVICES_MAX,
  reachServices,
} from '../../../../initiator/multipath/discovery-referrals.ts';
import { parseAddress } from '../../../../native/common/address.ts';
import { NQN } from '../fake-controller.ts';
import { discoveryLog, entry, referral } from './discovery-support.ts';
import type { Entry } from './discovery-support.ts';

async function answer(entries: readonly Entry[], reached = '192.0.2.1'): Promise<ServiceAnswer> {
  const page = discoveryLog(7n, entries);
  const log = await readDiscoveryLog({
    getLogPage: ({ bytes, offset = 0 }) => Promise.resolve(page.slice(offset, offset + bytes)),
  });
  return answerOf(log, NQN, parseAddress(reached));
}

const endpoints = (found: readonly FoundEndpoint[]): string[] =>
  found.map(({ endpoint }) => endpoint);

describe('a discovery log', () => {
  it('tells the RDMA endpoints of the wanted subsystem', async () => {
    const { generation, records, paths, referrals, problems } = await answer([
      entry('192.0.2.7'),
      entry('2001:DB8::1', { trsvcid: '4421' }),
      entry('192.0.2.8', { trtype: 3 }),
      entry('192.0.2.9', { subnqn: `${NQN}2` }),
      entry('192.0.2.1', { subtype: 3 }),
      referral('192.0.2.10'),
      referral('192.0.2.11', { trtype: 3 }),
    ]);
    expect([generation, records, problems]).to.deep.equal([7n, 7, []]);
    expect(endpoints(paths)).to.deep.equal(['192.0.2.7:4420', '[2001:db8::1]:4421']);
    expect(endpoints(referrals)).to.deep.equal(['192.0.2.10:4420']);
  });

  it('has each endpoint once, in whichever spelling', async () => {
    const { paths } = await answer([
      entry('2001:db8:0:0:0:0:0:1'),
      entry('[2001:DB8::1]', { portid: 2 }),
      entry('2001:db8::1', { trsvcid: ' 4420 ' }),
      entry('192.0.2.7'),
      entry('::ffff:192.0.2.7'),
      entry('::FFFF:c000:207'),
      entry('192.0.2.7', { trsvcid: '4421' }),
    ]);
    expect(endpoints(paths)).to.deep.equal([
      '[2001:db8::1]:4420',
      '192.0.2.7:4420',
      '192.0.2.7:4421',
    ]);
  });

  it('leads from here: wildcards, zones', async () => {
    const wild = await answer([entry('0.0.0.0'), entry('::', { trsvcid: '4421' })]);
    expect(endpoints(wild.paths)).to.deep.equal(['192.0.2.1:4420', '192.0.2.1:4421']);
    const local = await answer([entry('fe80::7%ens9')], 'fe80::1%eth0');
    expect(endpoints(local.paths)).to.deep.equal(['[fe80::7%eth0]:4420']);
    const global = await answer([entry('2001:db8::7%ens9')], 'fe80::1%eth0');
    expect(endpoints(global.paths)).to.deep.equal(['[2001:db8::7]:4420']);
    const here = await answer([entry('127.0.0.2')], '127.0.0.1');
    expect(endpoints(here.paths)).to.deep.equal(['127.0.0.2:4420']);
  });

  const useless: readonly (readonly [string, Entry, RegExp])[] = [
    ['a name', entry('target.example'), /TRADDR/],
    ['an address of the other family', entry('2001:db8::1', { adrfam: 1 }), /TRADDR.*ADRFAM/],
    ['InfiniBand', entry('fe80::1', { adrfam: 3 }), /ADRFAM is infiniband/],
    ['an unknown family', entry('192.0.2.7', { adrfam: 77 }), /ADRFAM/],
    ['port 0', entry('192.0.2.7', { trsvcid: '0' }), /TRSVCID/],
    ['port 65536', entry('192.0.2.7', { trsvcid: '65536' }), /TRSVCID/],
    ['no port', entry('192.0.2.7', { trsvcid: '' }), /TRSVCID/],
    ['a port in hexadecimal', entry('192.0.2.7', { trsvcid: '0x1144' }), /TRSVCID/],
    ['multicast', entry('224.0.0.1'), /TRADDR.*multicast/],
    ['IPv6 multicast', entry('ff02::1'), /TRADDR.*multicast/],
    ['loopback of another machine', entry('127.0.0.1'), /TRADDR.*loopback/],
    ['link-local without an interface', entry('fe80::7'), /TRADDR.*link-local/],
    ['a secure channel', entry('192.0.2.7', { treqSecureChannel: 1 }), /TREQ/],
  ];
  for (const [name, record, problem] of useless) {
    it(`does not lead to ${name}, and names the field`, async () => {
      const { paths, problems } = await answer([entry('192.0.2.9'), record]);
      expect(endpoints(paths)).to.deep.equal(['192.0.2.9:4420']);
      expect(problems).to.have.length(1);
      expect(problems[0])
        .to.match(/^record 1 is not used/)
        .and.to.match(problem);
    });
  }

  it('compares endpoints by value', () => {
    expect(sameEndpoint('[::ffff:127.0.0.1]:4420', '127.0.0.1:4420')).to.equal(true);
    expect(sameEndpoint('[fe80::1%eth0]:4420', '[FE80::1]:4420')).to.equal(true);
    expect(sameEndpoint('[fe80::1%eth0]:4420', '[fe80::1%eth1]:4420')).to.equal(false);
    expect(sameEndpoint('192.0.2.1:4420', '192.0.2.1:4421')).to.equal(false);
  });
});

describe('referrals', () => {
  const at = (last: number): FoundEndpoint => endpointOf(parseAddress(`192.0.2.${last}`), 4420);
  const reach = (
    links: Readonly<Record<number, readonly number[]>>,
    followed: readonly number[] = [],
  ): { readonly order: string[]; readonly problems: readonly string[] } => {
    const table = new Map(
      Object.entries(links).map(([from, to]) => [at(Number(from)).endpoint, to.map(at)]),
    );
    const known = new Set(followed.map((each) => at(each).endpoint));
    const { services, problems } = reachServices(
      [at(1)],
      (endpoint) => table.get(endpoint) ?? [],
      (endpoint) => known.has(endpoint),
    );
    const order = [...services].map(
      ([endpoint, { referredBy }]) => `${referredBy ?? 'named'} > ${endpoint}`,
    );
    return { order: order.map((each) => each.replaceAll(/192\.0\.2\.|:4420/g, '')), problems };
  };

  it('are followed breadth first, to each service once', () => {
    const { order, problems } = reach({ 1: [2, 3], 2: [4], 3: [4, 2] });
    expect(order).to.deep.equal(['named > 1', '1 > 2', '1 > 3', '2 > 4']);
    expect(problems).to.deep.equal([]);
  });

  it('may lead back', () => {
    const { order, problems } = reach({ 1: [1, 2], 2: [2, 3], 3: [1] });
    expect(order).to.deep.equal(['named > 1', '1 > 2', '2 > 3']);
    expect(problems).to.deep.equal([]);
  });

  it('end at a depth', () => {
    const links = Object.fromEntries(Array.from({ length: 20 }, (_, i) => [i + 1, [i + 2]]));
    const { order, problems } = reach(links);
    expect(order).to.have.length(1 + REFERRAL_DEPTH_MAX);
    expect(problems).to.have.length(1);
    expect(problems[0]).to.contain(`more than ${REFERRAL_DEPTH_MAX} referrals`);
  });

  it('are limited in number; those that are followed stay, in whatever order they are listed', () => {
    const many = Array.from({ length: 200 }, (_, i) => i + 2);
    const first = reach({ 1: many });
    expect(first.order).to.have.length(SERVICES_MAX);
    expect(first.problems[0]).to.contain(`${SERVICES_MAX} at most`);
    const followed = many.slice(0, SERVICES_MAX - 1);
    const again = reach({ 1: many.toReversed() }, followed);
    expect(again.order.toSorted()).to.deep.equal(first.order.toSorted());
  });
});
