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
import { codeOf } from '../../../support/error-code.ts';
import { SocketFile, isLive } from '../../../../target/control/socket-file.ts';

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

  /** A socket whose process died. */
  async function leaveDead(at: string): Promise<void> {
    const dead = make();
    dead.listen(`${at}.dead`);
    await once(dead, 'listening');
    renameSync(`${at}.dead`, at);
    dead.close();
    await once(dead, 'close');
    expect(lstatSync(at).isSocket()).to.be.true;
  }

  it('of a process that died is taken over', async () => {
    await leaveDead(path);
    expect(await answers()).to.be.false;
    await open();
    expect(await answers()).to.be.true;
    expect(readdirSync(folder)).to.deep.equal(['target.sock']);
  });

  it('of a process that died while it took one over is taken over, too', async () => {
    await leaveDead(path);
    await leaveDead(`${path}~`);
    await leaveDead(`${path}~~`);
    await open();
    expect(await answers()).to.be.true;
    expect(readdirSync(folder)).to.deep.equal(['target.sock']);
  });

  it('that another took meanwhile stays with it, and can be reached all the time', async () => {
    await leaveDead(path);
    let late: () => void = () => undefined;
    const taken = new Promise<void>((resolve) => (late = resolve));
    const reached: boolean[] = [];
    // It looked while nobody listened, and goes on when somebody does.
    const slow = async (at: string): Promise<boolean> => {
      const live = await isLive(at);
      await taken;
      reached.push(await answers());
      return live;
    };
    const second = codeOf(SocketFile.open(make(), path, slow));
    await new Promise(setImmediate);
    await open();
    late();
    expect(await second).to.equal('CONTROL_IN_USE');
    expect(reached.length).to.be.greaterThan(1);
    expect(reached).to.not.include(false);
    expect(await answers()).to.be.true;
    expect(readdirSync(folder)).to.deep.equal(['target.sock']);
  });

  it('that nobody listens on goes to one of those that come at the same moment, and stays there', async () => {
    for (let round = 0; round < 26; round++) {
      await leaveDead(path);
      // One after the other at ever other distances, so that they meet at each step of each other.
      const comers = [0, round % 8, round % 13].map(async (turns) => {
        for (let turn = 0; turn < turns; turn++) await new Promise(setImmediate);
        const server = make();
        return { server, code: await codeOf(SocketFile.open(server, path)) };
      });
      const ended = await Promise.all(comers);
      const winners = ended.filter(({ code }) => code === 'none');
      expect(winners, `round ${round}`).to.have.length(1);
      expect(ended.filter(({ code }) => code === 'CONTROL_IN_USE')).to.have.length(2);
      let reached = false;
      winners[0]?.server.once('connection', () => (reached = true));
      expect(await answers()).to.be.true;
      await new Promise(setImmediate);
      expect(reached, `round ${round}: the winner is reached`).to.be.true;
      expect(readdirSync(folder)).to.deep.equal(['target.sock']);
      winners[0]?.server.close();
    }
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
