/** What a running attach answers over its control socket, and how that looks: over a subsystem on the fake fabric. */
import { expect } from 'chai';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ControlServer } from '../../../target/index.ts';
import { HOST_SIDE_METHODS } from '../../../tools/cli/host/methods.ts';
import { attachSocket, removeLeftOver } from '../../../tools/cli/host/sockets.ts';
import { statusTree } from '../../../tools/cli/host/view.ts';
import { PATH_A, PATH_B, withFabric } from '../initiator/multipath/fabric.ts';
import { run } from './support.ts';
import type { Run } from './support.ts';

type Nvmeof = (...args: string[]) => Promise<Run>;

async function withAttach(test: (nvmeof: Nvmeof, socket: string) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), 'nvmeof-attach-'));
  const path = join(folder, 'attach.sock');
  await withFabric(async (fabric) => {
    const subsystem = await fabric.connect();
    const served = [{ nsid: 1, way: 'nbd', socket: '/run/nbd.sock' }];
    const tools = { subsystem, served, version: '1.2.3', sourceAddress: undefined };
    const server = await ControlServer.serve({ path, tools, methods: HOST_SIDE_METHODS });
    try {
      await test((...args) => run(args), path);
    } finally {
      await server.close();
      await subsystem.disconnect();
    }
  });
  rmSync(folder, { recursive: true });
}

describe('the control socket of attach', () => {
  it('shows paths, namespaces and sockets', async () => {
    await withAttach(async (nvmeof, socket) => {
      const { stdout, stderr } = await nvmeof('list-subsys', socket);
      expect(stderr).to.equal('');
      expect(stdout).to.match(/^nqn\..+ - process \d+, round-robin\n\\\n/);
      expect(stdout).to.match(/^ \+- traddr=192\.0\.2\.11,trsvcid=4420 live/m);
      expect(stdout).to.contain(' +- serves namespace 1: nbd /run/nbd.sock\n');
    });
  });

  it('refuses what is wrong, and says what', async () => {
    await withAttach(async (nvmeof, socket) => {
      for (const [method, params, text] of [
        ['path.remove', '{"endpoint":"192.0.2.99:4420"}', `there are ${PATH_A}, ${PATH_B}`],
        ['path.reset', '{"endpoint":7}', 'endpoint'],
        ['path.add', '{"address":"host"}', 'address'],
        ['path.add', '{"address":"192.0.2.11"}', 'there is a path 192.0.2.11:4420 already'],
        ['policy.set', '{"policy":"fast"}', 'policy'],
        ['host.status', '{"more":1}', 'more'],
      ] as const) {
        const { code, stderr, stdout } = await nvmeof('rpc', method, params, '--socket', socket);
        expect(code, method).not.to.equal(0);
        expect(stderr + stdout, method).to.contain(text);
      }
    });
  });

  it('says when nobody is there', async () => {
    const { code, stderr } = await run(['list-subsys', '/nowhere/attach.sock']);
    expect(code).to.equal(3);
    expect(stderr).to.match(/no nvmeof attach answers at .*: there is no such socket/);
  });

  it('is removed by the next attach when its process was killed, and by nobody while it lives', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'nvmeof-left-'));
    const at = (name: string): string => join(folder, name);
    const server = createServer();
    try {
      // A process that is killed leaves its socket behind.
      const die = `require('node:net').createServer().listen(${JSON.stringify(at('attach-5.sock'))}, () => process.kill(process.pid, 9))`;
      spawnSync(process.execPath, ['-e', die]);
      await once(server.listen(at('attach-6.sock')), 'listening');
      writeFileSync(at('attach-7.sock'), 'no socket');
      writeFileSync(at('target.sock'), 'not its own');
      expect(readdirSync(folder)).to.include('attach-5.sock');
      await removeLeftOver(at('attach-8.sock'));
      expect(readdirSync(folder).sort()).to.deep.equal([
        'attach-6.sock',
        'attach-7.sock',
        'target.sock',
      ]);
    } finally {
      server.close();
      rmSync(folder, { recursive: true });
    }
  });

  it('has its socket beside that of the target', () => {
    expect(attachSocket('/run/nvmeof/target.sock', 7)).to.equal('/run/nvmeof/attach-7.sock');
  });
});

describe('the tree of list-subsys', () => {
  it('says why a path is not live, and when it is tried again', () => {
    const path = { reason: '', preferred: false, queues: 1, queuesAsked: 1, attempts: 0 };
    const group = (id: number, state: string): { id: number; state: string; nsids: number[] } => ({
      ...{ id, state, nsids: [id] },
    });
    const tree = statusTree({
      ...{ version: '1', pid: 7, nqn: 'nqn.x', policy: 'numa', writesHeld: 2 },
      paths: [
        {
          ...{ ...path, endpoint: '[2001:db8::1]:4421', state: 'live', preferred: true },
          anaGroups: [group(1, 'optimized'), group(2, 'inaccessible')],
        },
        {
          ...{ ...path, endpoint: '192.0.2.1:4420', state: 'reconnecting', anaGroups: [] },
          ...{ reason: 'no answer', attempts: 3, nextAttemptMs: 1500 },
        },
      ],
      namespaces: [{ nsid: 1, bytes: 1 << 20, lbaSize: 512, writeProtected: true }],
      served: [],
    });
    expect(tree).to.deep.equal([
      'nqn.x - process 7, numa, 2 writes wait for a fence',
      '\\',
      ' +- traddr=2001:db8::1,trsvcid=4421 live group 1 optimized, group 2 inaccessible (preferred)',
      ' +- traddr=192.0.2.1,trsvcid=4420 reconnecting (no answer; attempt 4 in 1.5 s)',
      ' +- namespace 1: 1 MiB, blocks of 512 bytes, read-only',
    ]);
  });
});
