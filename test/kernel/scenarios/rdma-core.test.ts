/**
 * rdma-core's example programs and perftest, on rdma_rxe in a guest, with our RC, UC and UD queue pairs, atomics, and
 * connection management on the other side. Each side is the server once.
 */
import { expect } from 'chai';
import { buildPeer, gidIndex, startPeer, type Report } from '../support/rdma-peer.ts';
import {
  DEFAULT,
  everyKernel,
  side,
  SMALL_V6,
  type Lab,
  type Scenario,
  type Variant,
} from '../support/scenario.ts';

const ROUNDS = 50;
const services = ['rc', 'uc', 'ud'] as const;
type Service = (typeof services)[number];
type Verb = 'send' | 'write' | 'read' | 'atomic';

/** A message of several packets, where the service has such. */
const sizeOf = (service: Service): number => (service === 'ud' ? 1000 : 3000);

interface GuestSide {
  /** Runs a program in the guest to its end. */
  run(program: string): Promise<string>;
  readonly gid: string;
  readonly address: string;
  /** Where ibv_*_pingpong listens for TCP, whatever the GIDs that are exchanged over it. */
  readonly ipv4: string;
}

async function prepare(lab: Lab): Promise<GuestSide> {
  const { guest, address } = await lab.takeGuest();
  const seat = lab.seats.find((candidate) => candidate.guest === guest);
  return {
    ipv4: seat?.port.addresses.IPv4 ?? address,
    run: (program) => guest.run(`${program} 2>&1`),
    gid: await gidIndex(guest, address),
    address,
  };
}

/** Our server, then a program in the guest that calls it. */
async function call(
  lab: Lab,
  guest: GuestSide,
  program: string,
  options: readonly string[],
  command: string,
): Promise<{ report: Report; said: string }> {
  const peer = startPeer(lab, program, options);
  await peer.listening();
  const said = await guest.run(command);
  return { report: await peer.report(), said };
}

function pingpong(scenario: Scenario, service: Service): void {
  const size = sizeOf(service);
  const options = ['--type', service, '--size', String(size), '--iterations', String(ROUNDS)];
  const commandOf = (gid: string): string =>
    `ibv_${service}_pingpong -d rdma0 -g ${gid} -s ${size} -n ${ROUNDS}` +
    (service === 'ud' ? '' : ' -m 1024');
  scenario(
    `ibv_${service}_pingpong, to and fro`,
    { core: service === 'ud' ? [DEFAULT] : [], variants: [...everyKernel(), SMALL_V6] },
    async (lab) => {
      const guest = await prepare(lab);
      const command = commandOf(guest.gid);
      const { report } = await call(
        lab,
        guest,
        'pingpong-server',
        options,
        `${command} ${lab.address}`,
      );
      expect(report['exchanges']).to.equal(ROUNDS);
      const server = guest.run(command);
      const peer = startPeer(lab, 'pingpong-client', [guest.ipv4, ...options]);
      const [said, back] = await Promise.all([server, peer.report()]);
      expect(said).to.include(`${ROUNDS} iters`);
      expect(back['exchanges']).to.equal(ROUNDS);
    },
  );
}

/** With `-F` a guest whose clock runs too unevenly to measure cycles per second only reports no speed: nobody here reads it. */
const perftest = (verb: Verb, service: Service, gid: string, more = ''): string =>
  `ib_${verb}_bw -F -d rdma0 -x ${gid} -n 200 ${verb === 'atomic' ? '' : `-s ${sizeOf(service)}`} ` +
  `-c ${service.toUpperCase()} ${more}`;

/** The perftest of Debian 12 knows TCP over IPv4 only. */
const perftestVariants = (): Variant[] => [...everyKernel(), { ...DEFAULT, mtu: 1024 }];

const withPerftest: readonly (readonly [Verb, Service, string, Partial<Report>])[] = [
  ['send', 'rc', '', { received: 200 }],
  ['send', 'uc', '', { received: 200 }],
  ['send', 'ud', '', { received: 200 }],
  ['write', 'rc', '', {}],
  ['write', 'uc', '', {}],
  ['read', 'rc', '', {}],
  // Every FetchAdd of 1 once, wherever it went.
  ['atomic', 'rc', '-A FETCH_AND_ADD', { atomics: 200, sum: 200 }],
  ['atomic', 'rc', '-A CMP_AND_SWAP', { atomics: 200 }],
];

side('rdma-core and perftest ↔ queue pairs on soft', (scenario) => {
  before('rdma_peer is built', async function () {
    this.timeout(900_000);
    await buildPeer();
  });

  for (const service of services) pingpong(scenario, service);

  scenario('rping, both as server', { variants: [...everyKernel(), SMALL_V6] }, async (lab) => {
    const guest = await prepare(lab);
    const command = `rping -C ${ROUNDS} -S 500 -v -V`;
    const { report, said } = await call(
      lab,
      guest,
      'rping-server',
      [],
      `${command} -c -a ${lab.address}`,
    );
    expect(report['rounds']).to.equal(ROUNDS);
    expect(said).to.include('ping data: rdma-ping-0');
    const server = guest.run(`${command} -s -a ${guest.address}`);
    const { guest: machine } = await lab.takeGuest();
    await machine.until('rdma resource show cm_id | grep -q LISTEN');
    const client = startPeer(lab, 'rping-client', [
      ...[guest.address, '--size', '500', '--iterations', String(ROUNDS)],
    ]);
    const [, back] = await Promise.all([server, client.report()]);
    expect(back['rounds']).to.equal(ROUNDS);
  });

  scenario(
    'perftest of each verb and service, as client',
    { core: [DEFAULT], variants: perftestVariants(), seconds: 300 },
    async (lab) => {
      const guest = await prepare(lab);
      for (const [verb, service, more, expected] of withPerftest) {
        const options = ['--verb', verb, '--type', service, '--size', String(sizeOf(service))];
        const command = perftest(verb, service, guest.gid, more);
        const { report } = await call(
          lab,
          guest,
          'perftest-server',
          options,
          `${command} ${lab.address}`,
        );
        expect(report, `${verb} ${service} ${more}`).to.include(expected);
      }
    },
  );

  scenario(
    'perftest of write, read and atomics, as server',
    { variants: perftestVariants(), seconds: 240 },
    async (lab) => {
      const guest = await prepare(lab);
      for (const verb of ['write', 'read', 'atomic'] as const) {
        const server = guest.run(perftest(verb, 'rc', guest.gid));
        const client = startPeer(lab, 'perftest-client', [
          ...[guest.address, '--verb', verb, '--iterations', '100'],
        ]);
        const [, report] = await Promise.all([server, client.report()]);
        expect(report['operations']).to.equal(100);
      }
    },
  );
});
