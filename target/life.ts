/**
 * One life of a controller: from CSTS.RDY to the end of its last I/O command. CNTLID, CIU and CIRN name it (NVMe Base 2.3 figure
 * "Identify Controller Data Structure", bytes 78, 135, 136), so that who means an old one never hits a new one.
 */
import { createHash, randomBytes } from 'node:crypto';

export interface LifeName {
  readonly cntlid: number;
  /** 1 to 255. */
  readonly ciu: number;
  readonly cirn: bigint;
}

export interface Life extends LifeName {
  readonly hostNqn: string;
  readonly hostId: Uint8Array;
}

export function keyOf({ cntlid, ciu, cirn }: LifeName): string {
  return `${cntlid}.${ciu}.${cirn}`;
}

export function sameHost(one: Life, other: Life): boolean {
  return one.hostNqn === other.hostNqn && Buffer.compare(one.hostId, other.hostId) === 0;
}

/** A number that cannot be guessed and is not 0. */
export function randomInstanceNumber(): bigint {
  for (;;) {
    const number = randomBytes(8).readBigUInt64LE();
    if (number !== 0n) return number;
  }
}

/** 'alive': it may write; 'wanted': its host wants it to end. */
export type MarkPurpose = 'alive' | 'wanted';

const MARK_BITS = 62;

/**
 * The mark (native/block/marks.h) by which targets that share a backing speak of a life. Who cannot name the life and its host cannot
 * name the mark.
 */
export function markOf(subsystemNqn: string, life: Life, purpose: MarkPurpose): bigint {
  const hash = createHash('sha256');
  for (const part of [purpose, subsystemNqn, life.hostNqn, keyOf(life)]) hash.update(`${part}\0`);
  return BigInt.asUintN(MARK_BITS, hash.update(life.hostId).digest().readBigUInt64LE());
}
