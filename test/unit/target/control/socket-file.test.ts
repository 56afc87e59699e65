/** Where a control socket lies, and who may have the place. */
import { expect } from 'chai';
import { once } from 'node:events';
import {
  existsSync,
  lstatSync,
  mkdtempSync,
  readFileSync,
  readdirSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer } from 'node:net';
import type { Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { NvmeofError } from '../../../../native/common/errors.ts';
import { SocketFile } from '../../../../target/control/socket-file.ts';

describe('the control socket in the file system', () => {
  let folder = '';
  let path = '';
  const servers: Server[] = [];
  beforeEach(() => {
    folder = mkdtempSync(join(tmpdir(), 'nvmeof-socket-'));
    path = join(folder, 'target.sock');
  });
  afterEach(async () => {
    for (const server of servers.splice(0)) {
      if (!server.listening) continue;
      server.close();
      await once(server, 'close');
    }
    rmSync(folder, { recursive: true });
  });

  const make = (): Server => {
    const server = createServer((socket) => {
      socket.on('error', () => undefined);
      socket.end('here');
    });
    servers.push(server);
    return server;
  };
  const open = (): Promise<SocketFile> => SocketFile.open(make(), path);
  const codeOf = async (promise: Promise<unknown>): Promise<string> => {
    try {
      await promise;
    } catch (error) {
      if (error instanceof NvmeofError) return error.code;
      throw error;
    }
    return 'none';
  };
  const answers = async (): Promise<boolean> => {
    const socket = connect(path);
    try {
      await once(socket, 'connect');
      return true;
    } catch {
      return false;
    } finally {
      socket.destroy();
    }
  };

  it("is the user's alone, works, and goes with its server", async () => {
    const file = await open();
    expect(lstatSync(path).isSocket()).to.be.true;
    expect(lstatSync(path).mode & 0o777).to.equal(0o600);
    expect(readdirSync(folder)).to.deep.equal(['target.sock']);
    expect(await answers()).to.be.true;
    file.remove();
    file.remove();
    expect(readdirSync(folder)).to.deep.equal([]);
  });

  it('that somebody listens on is refused, and goes on', async () => {
    await open();
    expect(await codeOf(open())).to.equal('CONTROL_IN_USE');
    expect(readdirSync(folder)).to.deep.equal(['target.sock']);
    expect(await answers()).to.be.true;
  });

  it('of a process that died is taken over', async () => {
    const dead = make();
    dead.listen(`${path}.dead`);
    await once(dead, 'listening');
    renameSync(`${path}.dead`, path);
    dead.close();
    await once(dead, 'close');
    expect(lstatSync(path).isSocket()).to.be.true;
    expect(await answers()).to.be.false;
    await open();
    expect(await answers()).to.be.true;
    expect(readdirSync(folder)).to.deep.equal(['target.sock']);
  });

  it('does not take the place of a file', async () => {
    writeFileSync(path, 'precious');
    expect(await codeOf(open())).to.equal('CONTROL_NO_SOCKET');
    expect(readFileSync(path, 'utf8')).to.equal('precious');
  });

  it("that is another's by now is left alone", async () => {
    const server = make();
    const file = await SocketFile.open(server, path);
    rmSync(path);
    await open();
    file.remove();
    server.close();
    await once(server, 'close');
    expect(await answers()).to.be.true;
  });

  it('needs a path that a socket can have', async () => {
    path = join(folder, 'x'.repeat(100));
    const error = await open().catch((problem: unknown) => problem as Error);
    expect(error).to.include({ code: 'CONTROL_PATH' });
    expect((error as Error).message).to.match(/too long for a socket: it may have \d+ bytes/);
    path = join(folder, 'none', 'target.sock');
    expect(await codeOf(open())).to.equal('CONTROL_PATH');
    expect(existsSync(path)).to.be.false;
  });
});
