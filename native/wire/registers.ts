/**
 * Controller properties (NVMe Base 2.1 section 3.1.4): offsets, and the bits of CAP, VS, CC, CSTS, CRTO. Bytes only.
 */
import { bits, flag, layout, u16, u32, u8 } from './layout.ts';
import type { RecordOf } from './layout.ts';

export const PropertyOffset = {
  cap: 0x00,
  vs: 0x08,
  cc: 0x14,
  csts: 0x1c,
  nssr: 0x20,
  crto: 0x68,
} as const;

const capLow = u32(0);
const capHigh = u32(4);

export const Cap = layout(8, {
  /** Maximum queue entries, 0-based. */
  mqes: bits(capLow, 0, 16),
  cqr: flag(capLow, 16),
  ams: bits(capLow, 17, 2),
  /** Worst time for RDY to change, in 500 ms units. */
  to: bits(capLow, 24, 8),
  dstrd: bits(capHigh, 0, 4),
  nssrs: flag(capHigh, 4),
  /** Command sets: bit 0 NVM, bit 6 one or more I/O command sets, bit 7 none. */
  css: bits(capHigh, 5, 8),
  bps: flag(capHigh, 13),
  cps: bits(capHigh, 14, 2),
  mpsmin: bits(capHigh, 16, 4),
  mpsmax: bits(capHigh, 20, 4),
  pmrs: flag(capHigh, 24),
  cmbs: flag(capHigh, 25),
  nsss: flag(capHigh, 26),
  /** Controller ready modes: bit 0 with media, bit 1 independent of media. */
  crms: bits(capHigh, 27, 2),
  nsses: flag(capHigh, 29),
});
export type Cap = RecordOf<typeof Cap>;

export const Vs = layout(4, { tertiary: u8(0), minor: u8(1), major: u16(2) });
export type Vs = RecordOf<typeof Vs>;

const cc = u32(0);

export const Cc = layout(4, {
  en: flag(cc, 0),
  css: bits(cc, 4, 3),
  mps: bits(cc, 7, 4),
  ams: bits(cc, 11, 3),
  shn: bits(cc, 14, 2),
  iosqes: bits(cc, 16, 4),
  iocqes: bits(cc, 20, 4),
  crime: flag(cc, 24),
});
export type Cc = RecordOf<typeof Cc>;

/** CC.CSS values. */
export const CommandSetSelected = { nvm: 0, allSupported: 6, adminOnly: 7 } as const;

export const ShutdownNotification = { none: 0, normal: 1, abrupt: 2 } as const;

const csts = u32(0);

export const Csts = layout(4, {
  rdy: flag(csts, 0),
  cfs: flag(csts, 1),
  shst: bits(csts, 2, 2),
  nssro: flag(csts, 4),
  pp: flag(csts, 5),
});
export type Csts = RecordOf<typeof Csts>;

export const ShutdownStatus = { normal: 0, occurring: 1, complete: 2 } as const;

/** Ready timeouts in 500 ms units: with media, independent of media. */
export const Crto = layout(4, { crwmt: u16(0), crimt: u16(2) });
export type Crto = RecordOf<typeof Crto>;
