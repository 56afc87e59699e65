/**
 * Discovery services elsewhere that hosts are told of: entries of subsystem type 1 in the discovery log (NVMe Base 2.1 section
 * 5.1.12.3.1). Two lead to the same service when transport, address and port are the same.
 */
import { NvmeofError } from '../native/common/errors.ts';
import { check, referralSchema, sameReferral } from './config.ts';
import type { ReferralConfig, ReferralOptions } from './config.ts';

function nameOf({ transport, address, port }: ReferralConfig): string {
  return `${transport} ${address} port ${port}`;
}

export class Referrals {
  readonly #changed: () => void;
  #all: readonly ReferralConfig[];

  /** `changed` is called after each change, not for those it begins with. */
  constructor(first: readonly ReferralConfig[], changed: () => void) {
    this.#all = first;
    this.#changed = changed;
  }

  get all(): readonly ReferralConfig[] {
    return this.#all;
  }

  /** Throws REFERRAL_EXISTS. */
  add(options: ReferralOptions): void {
    const referral = check(referralSchema, options, 'referral');
    if (this.#all.some((one) => sameReferral(one, referral))) {
      const name = nameOf(referral);
      throw new NvmeofError('REFERRAL_EXISTS', `there is a referral to ${name} already`, {
        object: name,
      });
    }
    this.#all = [...this.#all, referral];
    this.#changed();
  }

  /** Throws REFERRAL_UNKNOWN. */
  remove(options: Pick<ReferralOptions, 'address' | 'port' | 'transport'>): void {
    const referral = check(referralSchema, options, 'referral');
    const left = this.#all.filter((one) => !sameReferral(one, referral));
    if (left.length === this.#all.length) {
      const name = nameOf(referral);
      throw new NvmeofError('REFERRAL_UNKNOWN', `there is no referral to ${name}`, {
        object: name,
      });
    }
    this.#all = left;
    this.#changed();
  }
}
