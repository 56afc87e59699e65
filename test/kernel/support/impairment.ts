/**
 * Makes the link of a guest bad, at its own network card: netem for both directions, and filters that drop or damage
 * chosen RoCE packets on their way into the guest. IPv4 only where a filter looks into packets.
 */
import type { Guest } from './guest.ts';
import type { Lab } from './scenario.ts';

export interface Impairment {
  /** Arguments of netem for what the guest receives, for what it sends: "loss 1%". */
  readonly receive?: string;
  readonly send?: string;
}

const CLEAR = `tc qdisc del dev eth0 root 2>/dev/null || true
  tc qdisc del dev eth0 clsact 2>/dev/null || true
  ip link del ifb0 2>/dev/null || true`;

export async function impair(lab: Lab, guest: Guest, { receive, send }: Impairment): Promise<void> {
  lab.defer(() => (guest.alive ? guest.run(CLEAR) : undefined));
  await guest.run('modprobe -a sch_netem sch_ingress cls_matchall act_mirred ifb');
  if (send !== undefined) await guest.run(`tc qdisc add dev eth0 root netem ${send}`);
  if (receive === undefined) return;
  // netem delays what leaves; what arrives is sent through a device of its own first.
  await guest.run(`ip link add ifb0 type ifb 2>/dev/null || true
    ip link set ifb0 up
    tc qdisc add dev ifb0 root netem ${receive}
    tc qdisc add dev eth0 clsact
    tc filter add dev eth0 ingress matchall action mirred egress redirect dev ifb0`);
}

export async function repair(guest: Guest): Promise<void> {
  await guest.run(CLEAR);
}

/** Byte 0 of the base transport header, behind IPv4 and UDP. */
const OPCODE_AT = 28;
const UDP_CHECKSUM_AT = 26;
const BEHIND_BTH_AT = 40;
const TO_ROCE = 'protocol ip u32 match ip protocol 17 0xff match ip dport 4791 0xffff';

export const READ_RESPONSE = { first: 0x0d, middle: 0x0e, last: 0x0f, only: 0x10 } as const;

/**
 * Drops one in `nth` packets with this opcode that come to the guest, by chance: exactly every third would meet a requester
 * that asks again for six READs at the same one of them, round after round, until it gives up.
 */
export async function dropOneIn(
  lab: Lab,
  guest: Guest,
  nth: number,
  opcode: number,
): Promise<void> {
  await filter(
    lab,
    guest,
    `match u8 ${opcode} 0xff at ${OPCODE_AT}`,
    `ok random netrand drop ${nth}`,
  );
}

/** Damages one in `nth` RoCE packets that come to the guest, by chance: the ICRC is wrong, and nothing below RoCE can tell. */
export async function damageOneIn(lab: Lab, guest: Guest, nth: number): Promise<void> {
  const munge = `munge offset ${UDP_CHECKSUM_AT} u16 set 0 munge offset ${BEHIND_BTH_AT} u8 invert`;
  await filter(lab, guest, '', `ok random netrand pipe ${nth} action pedit ${munge}`);
}

async function filter(lab: Lab, guest: Guest, match: string, action: string): Promise<void> {
  lab.defer(() => (guest.alive ? guest.run(CLEAR) : undefined));
  await guest.run(`modprobe -a sch_ingress cls_u32 act_gact act_pedit
    tc qdisc replace dev eth0 clsact
    tc filter add dev eth0 ingress ${TO_ROCE} ${match} action ${action}`);
}
