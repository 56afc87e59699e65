/** The doctor on made-up machines: trees of /proc and /sys in a temporary folder. */
import { expect } from 'chai';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { formatFindings } from '../../../tools/cli/commands/doctor.ts';
import { examine } from '../../../tools/cli/doctor/examine.ts';
import { pathMtuOf, portOwners } from '../../../tools/cli/doctor/network-checks.ts';
import { SystemView } from '../../../tools/cli/doctor/system-view.ts';
import type { Finding } from '../../../tools/cli/doctor/system-view.ts';

const UDP_HEAD =
  '  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n';
const PROBE = { built: true, description: 'file /tmp/probe, 4 KiB, write-back, io_uring' };

function udpLine(address: string, port: number, inode: number): string {
  const hex = port.toString(16).toUpperCase().padStart(4, '0');
  const zero = '0'.repeat(address.length);
  return `  10: ${address}:${hex} ${zero}:0000 07 00000000:00000000 00:00000000 00000000     0        0 ${inode} 2 0000 0\n`;
}

/** A machine on which nothing stands in the way. */
const HEALTHY: Readonly<Record<string, string>> = {
  '/proc/net/udp': UDP_HEAD,
  '/proc/net/udp6': UDP_HEAD,
  '/proc/modules': 'ext4 1000 1 - Live 0x0\n',
  '/proc/sys/net/core/rmem_max': '4194304\n',
  '/proc/sys/net/core/wmem_max': '4194304\n',
  '/proc/self/status': 'Name:\tnode\nCapEff:\t0000000000000000\nSeccomp:\t0\n',
  '/proc/self/limits':
    'Max locked memory         unlimited            unlimited            bytes\n',
  '/proc/sys/kernel/io_uring_disabled': '0\n',
  '/proc/meminfo': 'HugePages_Total:       0\n',
  '/sys/kernel/mm/transparent_hugepage/enabled': 'always [madvise] never\n',
  '/sys/class/net/lo/mtu': '65536\n',
  '/sys/class/net/lo/operstate': 'unknown\n',
};

describe('doctor', () => {
  let root: string;

  beforeEach(() => {
    root = mkdtempSync(join(tmpdir(), 'nvmeof-doctor-'));
  });

  afterEach(() => {
    rmSync(root, { recursive: true });
  });

  function machine(changes: Readonly<Record<string, string | undefined>> = {}): SystemView {
    for (const [path, text] of Object.entries({ ...HEALTHY, ...changes })) {
      const full = join(root, path);
      mkdirSync(dirname(full), { recursive: true });
      if (text === undefined) rmSync(full, { force: true });
      else writeFileSync(full, text);
    }
    return new SystemView(root);
  }

  function addProcess(pid: number, name: string, inode: number): void {
    mkdirSync(join(root, `proc/${pid}/fd`), { recursive: true });
    writeFileSync(join(root, `proc/${pid}/comm`), `${name}\n`);
    symlinkSync('/dev/null', join(root, `proc/${pid}/fd/0`));
    symlinkSync(`socket:[${inode}]`, join(root, `proc/${pid}/fd/7`));
  }

  const about = (findings: readonly Finding[], subject: string): Finding => {
    const found = findings.find((finding) => finding.subject.startsWith(subject));
    if (!found) throw new Error(`nothing about ${subject}`);
    return found;
  };

  it('finds nothing on a healthy machine', () => {
    const findings = examine(machine(), PROBE);
    expect(findings.filter(({ level }) => level !== 'ok')).to.deep.equal([]);
    expect(findings.length).to.be.greaterThan(9);
  });

  it('names the process that holds the port, and where', () => {
    const view = machine({
      '/proc/net/udp': UDP_HEAD + udpLine('0100007F', 4791, 4711) + udpLine('0100007F', 53, 99),
      '/proc/net/udp6': UDP_HEAD + udpLine('00000000000000000000000000000000', 4791, 4712),
    });
    addProcess(321, 'node', 4711);
    addProcess(654, 'other', 4712);
    expect(portOwners(view)).to.deep.equal([
      { address: '127.0.0.1', inode: '4711', pid: 321, command: 'node' },
      { address: '::', inode: '4712', pid: 654, command: 'other' },
    ]);
    const findings = examine(view, PROBE).filter(({ subject }) => subject === 'UDP port 4791');
    expect(findings.map(({ level }) => level)).to.deep.equal(['warn', 'fail']);
    expect(findings[0]?.message).to.contain('process 321 (node) holds 127.0.0.1');
    expect(findings[1]?.message).to.contain('every address');
    expect(findings[1]?.remedy).to.contain('kill 654');
  });

  it('says when the process belongs to somebody else, or is the kernel', () => {
    const view = machine({
      '/proc/net/udp': UDP_HEAD + udpLine('070200C0', 4791, 4711) + udpLine('00000000', 4791, 0),
    });
    const [foreign, kernel] = examine(view, PROBE).filter(
      ({ subject }) => subject === 'UDP port 4791',
    );
    expect(foreign?.message).to.contain('192.0.2.7').and.to.contain('another user');
    expect(foreign?.remedy).to.contain('sudo ss');
    expect(kernel?.message).to.contain('kernel socket');
  });

  it('knows rdma_rxe', () => {
    const view = machine({
      '/proc/modules': 'rdma_rxe 204800 0 - Live 0x0\nib_core 1 1 - Live 0x0\n',
      '/proc/net/udp': UDP_HEAD + udpLine('00000000', 4791, 0),
    });
    const port = about(examine(view, PROBE), 'UDP port');
    expect(port.level).to.equal('fail');
    expect(port.remedy).to.contain('modprobe -r rdma_rxe');
    // With a device the verbs provider serves its addresses.
    const device = machine({
      '/proc/modules': 'rdma_rxe 204800 0 - Live 0x0\n',
      '/sys/class/infiniband/rxe0/ports/1/state': '4: ACTIVE\n',
    });
    expect(about(examine(device, PROBE), 'UDP port').level).to.equal('warn');
  });

  const warnings: [string, Readonly<Record<string, string | undefined>>, string, RegExp][] = [
    [
      'small socket buffers',
      { '/proc/sys/net/core/rmem_max': '212992\n' },
      'net.core.rmem_max',
      /sysctl -w net\.core\.rmem_max=4194304/,
    ],
    [
      'unreadable socket buffers',
      { '/proc/sys/net/core/wmem_max': undefined },
      'net.core.wmem_max',
      /sysctl/,
    ],
    [
      'little locked memory',
      { '/proc/self/limits': 'Max locked memory  8388608  8388608  bytes\n' },
      'RLIMIT_MEMLOCK',
      /ulimit -l unlimited/,
    ],
    [
      'locked memory below what a file namespace registers',
      { '/proc/self/limits': 'Max locked memory  90000000  90000000  bytes\n' },
      'RLIMIT_MEMLOCK',
      /ulimit -l unlimited/,
    ],
    ['no limits to read', { '/proc/self/limits': undefined }, 'RLIMIT_MEMLOCK', /ulimit/],
    [
      'io_uring off',
      { '/proc/sys/kernel/io_uring_disabled': '2\n' },
      'io_uring',
      /io_uring_disabled=0/,
    ],
    [
      'no huge pages',
      { '/sys/kernel/mm/transparent_hugepage/enabled': 'always madvise [never]\n' },
      'huge pages',
      /madvise/,
    ],
    [
      'an MTU of 1500',
      { '/sys/class/net/eth0/mtu': '1500\n', '/sys/class/net/eth0/operstate': 'up\n' },
      'interface eth0',
      /mtu 9000/,
    ],
    [
      'a packet filter',
      { '/proc/modules': 'nf_tables 1 1 - Live 0x0\n' },
      'firewall',
      /udp dport 4791 accept/,
    ],
    [
      'address translation',
      { '/proc/modules': 'nf_nat 1 1 - Live 0x0\n' },
      'NAT',
      /not translated/,
    ],
    [
      'an RDMA port that is down',
      { '/sys/class/infiniband/mlx5_0/ports/1/state': '1: DOWN\n' },
      'RDMA device mlx5_0 port 1',
      /up/,
    ],
  ];
  for (const [name, changes, subject, remedy] of warnings) {
    it(`warns of ${name}`, () => {
      const finding = about(examine(machine(changes), PROBE), subject);
      expect(finding.level).to.equal('warn');
      expect(finding.remedy).to.match(remedy);
    });
  }

  it('an interface that carries no packet fails, one that is down does not matter', () => {
    const view = machine({
      '/sys/class/net/small/mtu': '300\n',
      '/sys/class/net/small/operstate': 'up\n',
      '/sys/class/net/off/mtu': '1500\n',
      '/sys/class/net/off/operstate': 'down\n',
    });
    const findings = examine(view, PROBE);
    expect(about(findings, 'interface small').level).to.equal('fail');
    expect(about(findings, 'interface off').level).to.equal('ok');
    expect([351, 352, 1119, 1120, 1500, 4191, 4192, 9000].map(pathMtuOf)).to.deep.equal([
      0, 256, 512, 1024, 1024, 2048, 4096, 4096,
    ]);
  });

  it('CAP_IPC_LOCK lifts the limit of locked memory', () => {
    const view = machine({
      '/proc/self/status': 'CapEff:\t0000000000004000\n',
      '/proc/self/limits': 'Max locked memory  65536  65536  bytes\n',
    });
    expect(about(examine(view, PROBE), 'RLIMIT_MEMLOCK').level).to.equal('ok');
  });

  it('tells a sandbox from a kernel without io_uring', () => {
    const threads = { built: true, description: 'file, threads' };
    const sandbox = machine({ '/proc/self/status': 'Seccomp:\t2\n' });
    expect(about(examine(sandbox, threads), 'io_uring').message).to.contain('seccomp');
    expect(about(examine(machine(), threads), 'io_uring').message).to.contain('file, threads');
    const privileged = machine({ '/proc/sys/kernel/io_uring_disabled': '1\n' });
    expect(about(examine(privileged, threads), 'io_uring').level).to.equal('warn');
    expect(about(examine(privileged, PROBE), 'io_uring').level).to.equal('ok');
  });

  it('shows RDMA devices with their GIDs', () => {
    const folder = '/sys/class/infiniband/mlx5_0/ports/1';
    const gid = '0000:0000:0000:0000:0000:ffff:c000:0207';
    const view = machine({
      [`${folder}/state`]: '4: ACTIVE\n',
      [`${folder}/link_layer`]: 'Ethernet\n',
      [`${folder}/gids/0`]: '0000:0000:0000:0000:0000:0000:0000:0000\n',
      [`${folder}/gids/3`]: `${gid}\n`,
      [`${folder}/gid_attrs/types/3`]: 'RoCE v2\n',
    });
    const device = about(examine(view, PROBE), 'RDMA device mlx5_0');
    expect(device.level).to.equal('ok');
    expect(device.message)
      .to.contain(`3 ${gid} (RoCE v2)`)
      .and.not.to.contain('0000:0000:0000:0000:0000:0000');
    const old = machine({ [`${folder}/gid_attrs/types/3`]: 'IB/RoCE v1\n' });
    expect(about(examine(view, PROBE), 'verbs provider').message).to.contain('libibverbs.so.1');
    machine({
      '/usr/lib/x86_64-linux-gnu/libibverbs.so.1': '',
      '/usr/lib/x86_64-linux-gnu/librdmacm.so.1': '',
    });
    expect(about(examine(view, PROBE), 'verbs provider').remedy).to.contain('modprobe rdma_ucm');
    machine({ '/dev/infiniband/rdma_cm': '' });
    expect(about(examine(view, PROBE), 'verbs provider').level).to.equal('ok');
    expect(about(examine(old, PROBE), 'RDMA device mlx5_0').message).to.contain('no RoCE v2 GID');
  });

  it('says how to build what is not built', () => {
    const native = about(examine(machine(), { built: false, description: 'is missing' }), 'native');
    expect(native).to.include({ level: 'fail', message: 'is missing', remedy: 'npm run setup' });
  });

  it('sees nothing, and says so, where nothing can be read', () => {
    const findings = examine(new SystemView(join(root, 'nowhere')), PROBE);
    expect(findings.some(({ level }) => level === 'fail')).to.equal(false);
    expect(about(findings, 'interfaces').level).to.equal('warn');
  });

  it('prints a line each, and the remedy below', () => {
    const text = formatFindings([
      { subject: 'a', level: 'ok', message: 'fine' },
      { subject: 'long name', level: 'fail', message: 'broken', remedy: 'mend it' },
    ]);
    expect(text).to.equal(
      '[ ok ] a          fine\n[FAIL] long name  broken\n                  → mend it',
    );
  });
});
