/**
 * A progress bar on stderr when that is a terminal; nothing otherwise. Counts bytes.
 */
import { Presets, SingleBar } from 'cli-progress';
import type { CliStreams } from './context.ts';
import { formatSize } from '../../native/common/size.ts';

export interface Progress {
  advance(bytes: number): void;
  end(): void;
}

const SILENT: Progress = { advance: () => undefined, end: () => undefined };

export function startProgress(streams: CliStreams, label: string, totalBytes: number): Progress {
  if (streams.stderr.isTTY !== true || totalBytes === 0) return SILENT;
  const startedAt = process.hrtime.bigint();
  let done = 0;
  const bar = new SingleBar(
    {
      stream: streams.stderr,
      format: `${label} {bar} {percentage} %  {size} of {total_size}  {rate}/s`,
      hideCursor: true,
      fps: 8,
    },
    Presets.shades_classic,
  );
  const payload = (): Record<string, string> => {
    const seconds = Number(process.hrtime.bigint() - startedAt) / 1e9;
    return {
      size: formatSize(done),
      total_size: formatSize(totalBytes),
      rate: formatSize(seconds > 0 ? Math.round(done / seconds) : 0),
    };
  };
  bar.start(totalBytes, 0, payload());
  return {
    advance(bytes) {
      done += bytes;
      bar.update(done, payload());
    },
    end() {
      bar.stop();
    },
  };
}
