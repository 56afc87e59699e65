/** Whole blocks, of whatever size. */
export function grownTo(bytes: bigint, percent: number): bigint {
  const grown = (bytes * BigInt(percent)) / 100n;
  return grown - (grown % 4096n);
}
