/**
 * What a host must find in a controller's Identify data before it can work with it (NVMe Base 2.1 section 5.1.13.2.1,
 * NVMe RDMA Transport). Each rule names its field; the first that fails ends the connect. The rules are those Linux
 * hosts apply, so a target that satisfies us satisfies them.
 */
import { ControllerType } from '../native/wire/identify.ts';
import type { IdentifyController } from '../native/wire/identify.ts';
import { ConnectError } from './errors.ts';

export interface Expected {
  /** From the answer to Connect. */
  readonly cntlid: number;
  readonly subsystemNqn: string;
  readonly discovery: boolean;
  readonly keepAliveMs: number;
}

interface Rule {
  readonly field: string;
  /** Why it cannot be used; undefined when it can. */
  readonly problem: (data: IdentifyController, expected: Expected) => string | undefined;
}

const RULES: readonly Rule[] = [
  {
    field: 'CNTLID',
    problem: ({ cntlid }, expected) =>
      cntlid === expected.cntlid ? undefined : `is ${cntlid}, Connect said ${expected.cntlid}`,
  },
  {
    field: 'SUBNQN',
    problem: ({ subnqn }, { subsystemNqn }) =>
      subnqn === subsystemNqn ? undefined : `is "${subnqn}", not "${subsystemNqn}"`,
  },
  {
    // 0 is what controllers before NVMe 1.4 report.
    field: 'CNTRLTYPE',
    problem({ cntrltype }, { discovery }) {
      const wanted = discovery ? ControllerType.discovery : ControllerType.io;
      if (cntrltype === wanted || cntrltype === 0) return undefined;
      return `is ${cntrltype}, a ${discovery ? 'discovery' : 'I/O'} controller has ${wanted}`;
    },
  },
  {
    field: 'KAS',
    problem: ({ kas }, { discovery, keepAliveMs }) =>
      kas === 0 && !discovery && keepAliveMs > 0 ? 'is 0: no Keep Alive' : undefined,
  },
  {
    field: 'SGLS',
    problem({ sglsSupport, sglsKeyed }) {
      if (sglsSupport === 0 || sglsSupport === 3) return 'offers no SGLs';
      return sglsKeyed ? undefined : 'offers no keyed SGLs, which RDMA needs';
    },
  },
  {
    field: 'IOCCSZ',
    problem: ({ ioccsz }, { discovery }) =>
      ioccsz < 4 && !discovery ? `is ${ioccsz}, a command capsule needs 4` : undefined,
  },
  {
    field: 'IORCSZ',
    problem: ({ iorcsz }, { discovery }) =>
      iorcsz < 1 && !discovery ? `is ${iorcsz}, a response capsule needs 1` : undefined,
  },
  {
    field: 'ICDOFF',
    problem: ({ icdoff }) => (icdoff === 0 ? undefined : `is ${icdoff}, only 0 is supported`),
  },
  {
    field: 'SQES',
    problem: ({ sqes }, { discovery }) => entrySize(sqes, 6, discovery),
  },
  {
    field: 'CQES',
    problem: ({ cqes }, { discovery }) => entrySize(cqes, 4, discovery),
  },
  {
    field: 'NN',
    problem: ({ nn }, { discovery }) =>
      nn === 0 && !discovery ? 'is 0: no namespace is possible' : undefined,
  },
  {
    field: 'MNAN',
    problem({ mnan, nn, cmicAna }) {
      if (mnan > nn) return `is ${mnan}, more than NN ${nn}`;
      return cmicAna && mnan === 0 ? 'is 0 though ANA is reported' : undefined;
    },
  },
  {
    field: 'NANAGRPID',
    problem({ cmicAna, nanagrpid, anagrpmax }) {
      if (!cmicAna) return undefined;
      if (anagrpmax === 0) return 'cannot be: ANAGRPMAX is 0 though ANA is reported';
      return nanagrpid === 0 || nanagrpid > anagrpmax
        ? `is ${nanagrpid}, not 1 to ANAGRPMAX ${anagrpmax}`
        : undefined;
    },
  },
  {
    // 4 KiB pages times 2^n must stay a transfer length.
    field: 'MDTS',
    problem: ({ mdts }) => (mdts > 51 ? `is ${mdts}` : undefined),
  },
];

/** Low nibble the required size, high nibble the largest, as powers of two. */
function entrySize(value: number, power: number, discovery: boolean): string | undefined {
  if (discovery && value === 0) return undefined;
  const smallest = value & 0xf;
  const largest = value >> 4;
  return smallest <= power && power <= largest
    ? undefined
    : `is ${value.toString(16)}h, entries of ${2 ** power} bytes are needed`;
}

/** Throws a ConnectError that names the field. */
export function checkIdentifyController(data: IdentifyController, expected: Expected): void {
  for (const { field, problem } of RULES) {
    const found = problem(data, expected);
    if (found === undefined) continue;
    throw new ConnectError(
      'CONNECT_UNUSABLE_CONTROLLER',
      `the controller of "${expected.subsystemNqn}" cannot be used: Identify Controller field ${field} ${found}`,
      { object: field },
    );
  }
}
