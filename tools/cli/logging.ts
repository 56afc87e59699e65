/**
 * The log of a running target: bunyan on stderr. JSON lines for machines; on a terminal one readable line a record.
 */
import { Writable } from 'node:stream';
import Logger from 'bunyan';
import type { LogLevel } from '../../target/index.ts';
import type { CliStreams } from './context.ts';

export { LOG_LEVELS } from '../../target/index.ts';
export type { LogLevel } from '../../target/index.ts';

/** What bunyan puts into every record; the rest are the record's own fields. */
const COMMON: ReadonlySet<string> = new Set([
  'name',
  'hostname',
  'pid',
  'level',
  'msg',
  'time',
  'v',
]);

function fieldText(value: unknown): string {
  return typeof value === 'string' && /^[^\s"=]+$/.test(value) ? value : JSON.stringify(value);
}

/** '12:34:56.789 INFO  message key=value' */
export function formatRecord(line: string): string {
  const record = JSON.parse(line) as Readonly<Record<string, unknown>>;
  const level = Logger.nameFromLevel[record['level'] as number] ?? 'info';
  const time = typeof record['time'] === 'string' ? record['time'].slice(11, 23) : '';
  const fields = Object.entries(record)
    .filter(([name]) => !COMMON.has(name))
    .map(([name, value]) => ` ${name}=${fieldText(value)}`);
  return `${time} ${level.toUpperCase().padEnd(5)} ${String(record['msg'])}${fields.join('')}`;
}

export function makeLogger(streams: CliStreams, level: LogLevel, json: boolean): Logger {
  const readable = streams.stderr.isTTY === true && !json;
  const stream = new Writable({
    decodeStrings: false,
    write(line: string, _encoding, done) {
      streams.stderr.write(readable ? `${formatRecord(line)}\n` : line);
      done();
    },
  });
  return Logger.createLogger({
    name: 'nvmeof',
    streams: [{ level, stream }],
    serializers: { err: Logger.stdSerializers.err, bigint: String },
  });
}
