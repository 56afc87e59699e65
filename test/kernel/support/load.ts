/** I/O of a kernel host that goes on until it is told to stop, or until its device is gone. */
import type { KernelHost } from './kernel-host.ts';
import type { Output } from './channel.ts';

/** Far more than any scenario needs: a load that nobody stops ends with it. */
const SECONDS = 240;
const STOP_SECONDS = 60;

/** Enough to notice an error; leaves the guest time for what happens besides. */
export const LIGHT = '--rw=randrw --bs=4k --iodepth=4 --rate_iops=50 --size=4m';

/** Who executes it: resolves when that many more reads and writes have been. */
export interface Progress {
  progress(commands: number): Promise<void>;
}

let started = 0;

export class Load {
  /** fio's end, whatever its exit code. */
  readonly ended: Promise<Output>;
  readonly #host: KernelHost;
  readonly #target: Progress;
  readonly #stopFile: string;

  private constructor(host: KernelHost, target: Progress, device: string, args: string) {
    this.#host = host;
    this.#target = target;
    this.#stopFile = `/tmp/stop-load${(started += 1)}`;
    this.ended = host.guest.attempt(
      `cd /tmp
       fio --name=load --filename=${device} --ioengine=libaio --direct=1 --time_based --runtime=${SECONDS} ${args} &
       while kill -0 $! 2>/dev/null && [ ! -e ${this.#stopFile} ]; do sleep 0.1; done
       kill -INT $! 2>/dev/null
       wait $!`,
      SECONDS,
    );
    this.ended.catch(() => undefined);
  }

  /** Resolves when the target has seen some of it. */
  static async start(
    host: KernelHost,
    target: Progress,
    device: string,
    args = '--rw=randrw --bs=4k --iodepth=8 --size=8m',
  ): Promise<Load> {
    const load = new Load(host, target, device, args);
    await load.progress();
    return load;
  }

  /** Resolves when the target has executed some more; rejects when fio has ended instead. */
  async progress(commands = 50): Promise<void> {
    const early = this.ended.then(({ stdout, stderr }) => {
      throw new Error(`the load has ended:\n${stdout}${stderr}`);
    });
    await Promise.race([this.#target.progress(commands), early]);
  }

  /** Ends fio, which must not have met an error; returns its report. */
  async stop(): Promise<string> {
    await this.#host.guest.run(`touch ${this.#stopFile}`);
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<never>((_, reject) => {
      timer = setTimeout(() => {
        reject(new Error(`fio does not end within ${STOP_SECONDS} s`));
      }, STOP_SECONDS * 1000);
    });
    try {
      const { stdout, stderr } = await Promise.race([this.ended, late]);
      if (/err= 0\b/.test(stdout) && !/error=|verify: bad/.test(stderr)) return stdout;
      throw new Error(`the load met an error:\n${stdout}${stderr}`);
    } finally {
      clearTimeout(timer);
    }
  }
}
