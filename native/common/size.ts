/**
 * Byte counts as people write them: 4k, 256MiB, 1.5G, 10GB. k, M, G, T and KiB … TiB count in 1024 (as fio does), kB, MB, GB, TB
 * in 1000.
 */
import { NvmeofError } from './errors.ts';

const SIZE = /^(\d+)(?:\.(\d+))?\s*([kmgtp]?)(i?b)?$/i;
const PREFIXES = ['', 'k', 'm', 'g', 't', 'p'];
const NAMES = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

/** Throws with code SIZE_INVALID and what was expected. */
export function parseSize(text: string): bigint {
  const match = SIZE.exec(text.trim());
  const [, whole = '', fraction = '', prefix = '', suffix = ''] = match ?? [];
  const decimal = suffix.toLowerCase() === 'b' && prefix !== '';
  const unit = (decimal ? 1000n : 1024n) ** BigInt(PREFIXES.indexOf(prefix.toLowerCase()));
  const scaled = BigInt(whole + fraction) * unit;
  const divisor = 10n ** BigInt(fraction.length);
  const bareIb = suffix.toLowerCase() === 'ib' && prefix === '';
  if (!match || bareIb || scaled % divisor !== 0n) {
    throw new NvmeofError(
      'SIZE_INVALID',
      `"${text}" is not a size: write bytes, or a number with k, M, G, T (1024), or kB, MB, GB (1000)`,
      { object: text },
    );
  }
  return scaled / divisor;
}

/** The largest unit that leaves at least 1, with at most two decimals: '1.5 GiB'. */
export function formatSize(size: bigint | number): string {
  const bytes = typeof size === 'bigint' ? size : BigInt(Math.round(size));
  let unit = 0;
  while (unit < NAMES.length - 1 && bytes >= 1024n ** BigInt(unit + 1)) unit++;
  const scale = 1024n ** BigInt(unit);
  const hundredths = (bytes * 100n + scale / 2n) / scale;
  const text = (Number(hundredths) / 100).toString();
  return `${text} ${NAMES[unit] ?? 'B'}`;
}
