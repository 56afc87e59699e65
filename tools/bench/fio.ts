/** fio with io_uring on a local file: what the target's own backing carries without a network. */
import { z } from 'zod';
import type { Figures, Subject } from './figures.ts';
import { run, SLACK_SECONDS } from './programs.ts';

const side = z.object({
  iops: z.number(),
  bw_bytes: z.number(),
  total_ios: z.number(),
  clat_ns: z.object({ percentile: z.record(z.string(), z.number()).optional() }),
});
const output = z.object({ jobs: z.tuple([z.object({ read: side, write: side })]) });

/** Of `fio --output-format=json`, which `nvmeof bench --json` prints too. */
export function fioFigures(text: string): Figures & { readonly commands: number } {
  const [job] = output.parse(JSON.parse(text)).jobs;
  const used = job.read.total_ios >= job.write.total_ios ? job.read : job.write;
  const percentiles = used.clat_ns.percentile ?? {};
  const at = (key: string): number => (percentiles[key] ?? NaN) / 1000;
  return {
    iops: job.read.iops + job.write.iops,
    bandwidth: job.read.bw_bytes + job.write.bw_bytes,
    p50: at('50.000000'),
    p99: at('99.000000'),
    commands: job.read.total_ios + job.write.total_ios,
  };
}

export function localFio(path: string, depth: number, core: number): Subject {
  return {
    name: 'fio, io_uring, O_DIRECT, the file itself',
    async measure(seconds): Promise<Figures> {
      const text = await run(
        'fio',
        [
          ...['--name=local', `--filename=${path}`, '--ioengine=io_uring', '--direct=1'],
          ...['--rw=randread', '--bs=4k', `--iodepth=${depth}`, '--time_based'],
          ...[`--runtime=${seconds}`, `--cpus_allowed=${core}`, '--output-format=json'],
        ],
        seconds + SLACK_SECONDS,
      );
      return fioFigures(text);
    },
  };
}
