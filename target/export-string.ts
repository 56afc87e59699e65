/**
 * The short form of one namespace on the command line: `PATH|memory:SIZE|null:SIZE[,ro,bs=4096,uuid=…,cache=…]`. Yields
 * the same values as the configuration file; `serial` belongs to the subsystem.
 */
import { NvmeofError } from '../native/common/errors.ts';
import { check, namespaceSchema } from './config.ts';
import type { NamespaceConfig } from './config.ts';

export interface ExportString {
  readonly namespace: NamespaceConfig;
  readonly serial: string | undefined;
}

type Apply = (value: string) => Record<string, unknown>;

const numeric =
  (key: string): Apply =>
  (value) => ({ [key]: Number(value) });
const textual =
  (key: string): Apply =>
  (value) => ({ [key]: value });

/** Options with a value; the key is what a person types. */
const OPTIONS: Readonly<Record<string, Apply>> = {
  bs: numeric('blockSize'),
  nsid: numeric('nsid'),
  uuid: textual('uuid'),
  nguid: textual('nguid'),
  size: textual('size'),
  cache: textual('cache'),
  'ana-group': numeric('anaGroup'),
  serial: textual('serial'),
};

const FLAGS: Readonly<Record<string, Record<string, unknown>>> = {
  ro: { readOnly: true },
  rw: { readOnly: false },
  shared: { shared: true },
};

function option(text: string, whole: string): Record<string, unknown> {
  const flag = FLAGS[text];
  if (flag) return flag;
  const equals = text.indexOf('=');
  const apply = equals < 0 ? undefined : OPTIONS[text.slice(0, equals)];
  if (apply) return apply(text.slice(equals + 1));
  const known = [...Object.keys(FLAGS), ...Object.keys(OPTIONS).map((key) => `${key}=`)];
  throw new NvmeofError(
    'CONFIG_INVALID',
    `--export ${whole}: unknown option "${text}"; known are ${known.join(', ')}`,
    { object: whole },
  );
}

/** Throws CONFIG_INVALID. A comma in a path is written `\,`. */
export function parseExport(text: string): ExportString {
  const [source = '', ...rest] = text.split(/(?<!\\),/).map((part) => part.replaceAll('\\,', ','));
  const [, kind, length] = /^(memory|null):(.*)$/.exec(source) ?? [];
  const base = kind === undefined ? { path: source } : { [kind]: length };
  const merged = rest.reduce<Record<string, unknown>>(
    (all, part) => ({ ...all, ...option(part, text) }),
    base,
  );
  const { serial, ...values } = merged;
  return {
    namespace: check(namespaceSchema, values, `--export ${text}`),
    serial: typeof serial === 'string' ? serial : undefined,
  };
}
