/**
 * A guest: a stock kernel in qemu (software emulation), the machine's own root file system in it, one network card per
 * tap. Boots in a few seconds and then runs any number of scripts. Its console is kept in a file; when it dies, whatever
 * waits for it fails with the console's last lines.
 */
import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { createServer, type Socket } from 'node:net';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Channel, type Output } from './channel.ts';
import { runFolder, type Kernel } from './environment.ts';

/** What a scenario may ask of its guests' machines. */
export interface Machine {
  readonly processors?: number;
  readonly memory?: string;
  /**
   * Idle processors spin. One that halts is put to sleep by the machine below, and its wake-up costs 0.14 to 0.4 ms, more than
   * anything else in a measurement. Such a guest takes whole cores all the time: give it up after the scenario.
   */
  readonly spinWhenIdle?: boolean;
}

export interface GuestOptions extends Machine {
  readonly kernel: Kernel;
  /** Unique in the run; part of file names. */
  readonly name: string;
  /** Taps that exist already, with the MAC address of the card at the guest's end: eth0, eth1 … */
  readonly nets: readonly { readonly tap: string; readonly mac: string }[];
}

const REPOSITORY = fileURLToPath(new URL('../../..', import.meta.url)).replace(/\/$/, '');
const BOOT_SECONDS = 120;
const SCRIPT_SECONDS = 60;
/** Beyond the script's own limit, for the answer to come. */
const GRACE_SECONDS = 20;
const CONSOLE_LINES = 40;

export class Guest {
  readonly name: string;
  readonly kernel: Kernel;
  /** `uname -r` */
  readonly release: string;
  /** At /run/share in the guest. */
  readonly share: string;
  readonly #qemu: ChildProcess;
  readonly #channel: Channel;
  readonly #consoleFile: string;
  readonly #ended: Promise<unknown>;

  private constructor(parts: {
    options: GuestOptions;
    release: string;
    share: string;
    qemu: ChildProcess;
    channel: Channel;
    consoleFile: string;
    ended: Promise<unknown>;
  }) {
    this.name = parts.options.name;
    this.kernel = parts.options.kernel;
    this.release = parts.release;
    this.share = parts.share;
    this.#qemu = parts.qemu;
    this.#channel = parts.channel;
    this.#consoleFile = parts.consoleFile;
    this.#ended = parts.ended;
  }

  /**
   * Once in some hundred boots the emulator lets a processor run code that another one is patching (int3 in the idle
   * loop, before the first process): such a guest never was one, and the next one is.
   */
  static async boot(options: GuestOptions): Promise<Guest> {
    try {
      return await Guest.#boot(options);
    } catch (error) {
      const console = textOf(join(runFolder, options.name, 'console.log'));
      if (!console.includes('Oops: int3')) throw error;
      process.stderr.write(`test:kernel: ${options.name} fell over while it booted; once more\n`);
      return Guest.#boot({ ...options, name: `${options.name}-again` });
    }
  }

  static async #boot(options: GuestOptions): Promise<Guest> {
    const folder = join(runFolder, options.name);
    const share = join(folder, 'share');
    mkdirSync(share, { recursive: true });
    writeFileSync(join(share, 'repository'), REPOSITORY);
    const consoleFile = join(folder, 'console.log');
    const server = createServer().listen(join(folder, 'control'));
    await once(server, 'listening');
    const log = openSync(join(folder, 'qemu.log'), 'w');
    const qemu = spawn('qemu-system-x86_64', qemuArguments(options, folder), {
      stdio: ['ignore', log, log],
    });
    closeSync(log);
    const ended = once(qemu, 'exit');
    const death = ended.then(([code]) => {
      throw new Error(`qemu ended with ${String(code)}: ${textOf(join(folder, 'qemu.log'))}`);
    });
    death.catch(() => undefined);
    const connected = once(server, 'connection') as Promise<[Socket]>;
    const [socket] = await Promise.race([connected, death]);
    server.close();
    const channel = new Channel(
      socket,
      () =>
        `guest ${options.name} is gone. Its console:\n${tail(consoleFile, CONSOLE_LINES)}\n` +
        textOf(join(folder, 'qemu.log')),
    );
    const late = deadline(BOOT_SECONDS, () => {
      qemu.kill('SIGKILL');
    });
    try {
      const release = await channel.ready;
      return new Guest({ options, release, share, qemu, channel, consoleFile, ended });
    } finally {
      clearTimeout(late);
    }
  }

  /** Runs a script with sh as root; whatever its exit code. */
  async attempt(script: string, seconds = SCRIPT_SECONDS): Promise<Output> {
    const late = deadline(seconds + GRACE_SECONDS, () => {
      this.#channel.fail(
        new Error(
          `guest ${this.name} does not answer any more. Its console:\n${this.console(CONSOLE_LINES)}`,
        ),
      );
      void this.kill();
    });
    try {
      return await this.#channel.run(script, seconds);
    } finally {
      clearTimeout(late);
    }
  }

  /** Runs a script that has to succeed; returns what it printed. Stops at the first command that fails. */
  async run(script: string, seconds = SCRIPT_SECONDS): Promise<string> {
    const { code, stdout, stderr } = await this.attempt(`set -e\n${script}`, seconds);
    if (code === 0) return stdout;
    const why = code === 124 || code === 137 ? `not done after ${seconds} s` : `exit code ${code}`;
    throw new Error(`in guest ${this.name}, ${why}:\n${script}\n${stdout}${stderr}`);
  }

  /** Asks until `script` succeeds. */
  async until(script: string, seconds = 30): Promise<string> {
    return this.run(`until ( ${script} ); do sleep 0.1; done`, seconds);
  }

  /** The last lines of the kernel's console. */
  console(lines: number): string {
    return tail(this.#consoleFile, lines);
  }

  get consoleFile(): string {
    return this.#consoleFile;
  }

  get alive(): boolean {
    return this.#qemu.exitCode === null && this.#qemu.signalCode === null;
  }

  /** Pulls the plug. */
  async kill(): Promise<void> {
    if (this.alive) this.#qemu.kill('SIGKILL');
    await this.#ended;
    rmSync(this.share, { recursive: true, force: true });
  }
}

function qemuArguments(options: GuestOptions, folder: string): string[] {
  const { kernel, nets, processors = 2, memory = '1G', spinWhenIdle = false } = options;
  const share = (id: string, path: string, tag: string, more: string): string[] => [
    ...['-fsdev', `local,id=${id},path=${path},security_model=none${more}`],
    ...['-device', `virtio-9p-pci,fsdev=${id},mount_tag=${tag}`],
  ];
  return [
    ...['-machine', 'q35', '-accel', 'tcg,thread=multi,tb-size=256'],
    // pclmulqdq is slow in emulation, and rxe's checksum would use it.
    ...['-cpu', 'max,-pclmulqdq', '-smp', String(processors), '-m', memory],
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot'],
    ...['-serial', `file:${join(folder, 'console.log')}`, '-device', 'virtio-serial-pci'],
    ...['-chardev', `socket,id=control,path=${join(folder, 'control')}`],
    ...['-device', 'virtserialport,chardev=control,name=nvmeof.control'],
    ...share('root', '/', 'hostroot', ',readonly=on,multidevs=remap'),
    ...share('share', join(folder, 'share'), 'share', ''),
    ...nets.flatMap(({ tap, mac }, index) => [
      ...['-netdev', `tap,id=net${index},ifname=${tap},script=no,downscript=no`],
      ...['-device', `virtio-net-pci,netdev=net${index},mac=${mac},romfile=,host_mtu=9000`],
    ]),
    ...['-kernel', kernel.vmlinux, '-initrd', kernel.initrd, '-append'],
    // tsc=unstable: found out after the other processors run, it makes the kernel patch code under them.
    `console=ttyS0 panic=-1 oops=panic reboot=t mitigations=off nokaslr net.ifnames=0 tsc=unstable quiet loglevel=5${spinWhenIdle ? ' idle=poll' : ''}`,
  ];
}

/** Empty for a file that has gone with the run. */
function textOf(file: string): string {
  return existsSync(file) ? readFileSync(file, 'utf8') : '';
}

function tail(file: string, lines: number): string {
  return textOf(file).trimEnd().split('\n').slice(-lines).join('\n');
}

function deadline(seconds: number, late: () => void): NodeJS.Timeout {
  return setTimeout(late, seconds * 1000).unref();
}
