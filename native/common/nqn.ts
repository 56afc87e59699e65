/**
 * NVMe Qualified Names (NVMe Base 2.1 section 4.7): `nqn.yyyy-mm.reverse.domain:name`, or the UUID form. Names are compared byte
 * by byte. On the wire a name lies in 256 bytes and ends with a NUL.
 */

export const NQN_BYTES_MIN = 11;
export const NQN_BYTES_MAX = 223;
export const NQN_FIELD_BYTES = 256;

const UUID_PREFIX = 'nqn.2014-08.org.nvmexpress:uuid:';
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
const DATED = /^nqn\.(\d{4})-(\d{2})\.([^:]+)(?::(.*))?$/s;
const LABEL = /^[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?$/;
const LABEL_MAX = 63;

export const isUuid = (text: string): boolean => UUID.test(text);

/** Why the text is not an NQN; undefined when it is one. */
export function nqnProblem(nqn: string): string | undefined {
  const length = new TextEncoder().encode(nqn).length;
  if (length === 0) return 'is empty';
  if (length < NQN_BYTES_MIN) return `has ${length} bytes, at least ${NQN_BYTES_MIN} are needed`;
  if (length > NQN_BYTES_MAX) return `has ${length} bytes, at most ${NQN_BYTES_MAX} are allowed`;
  if (/[\u0000-\u001f\u007f\ufffd]/.test(nqn)) return 'holds control characters or damaged UTF-8';
  if (!nqn.startsWith('nqn.')) return 'does not start with "nqn."';
  if (nqn.startsWith(UUID_PREFIX)) {
    return isUuid(nqn.slice(UUID_PREFIX.length)) ? undefined : 'has a malformed UUID';
  }
  const [, , month, domain = '', name] = DATED.exec(nqn) ?? [];
  if (month === undefined) return 'is not of the form nqn.yyyy-mm.reverse.domain:name';
  if (Number(month) < 1 || Number(month) > 12) return `has month ${month}`;
  if (!domain.split('.').every((label) => LABEL.test(label) && label.length <= LABEL_MAX)) {
    return `has a malformed domain "${domain}"`;
  }
  return name === '' ? 'has nothing after the colon' : undefined;
}

export type NqnField =
  { readonly ok: true; readonly nqn: string } | { readonly ok: false; readonly problem: string };

/** Reads an NQN as it stands in Connect data: must be terminated, and a proper name. */
export function readNqnField(field: Uint8Array): NqnField {
  const end = field.indexOf(0);
  if (end < 0 || end > NQN_BYTES_MAX) {
    return { ok: false, problem: `has no terminating NUL within ${NQN_BYTES_MAX + 1} bytes` };
  }
  const nqn = new TextDecoder('utf-8', { ignoreBOM: true }).decode(field.subarray(0, end));
  const problem = nqnProblem(nqn);
  return problem === undefined ? { ok: true, nqn } : { ok: false, problem };
}

/** The NQN of the UUID form. */
export function uuidNqn(uuid: string): string {
  return UUID_PREFIX + uuid.toLowerCase();
}

/** The UUID of an NQN of the UUID form; undefined for others. */
export function uuidOfNqn(nqn: string): string | undefined {
  const uuid = nqn.startsWith(UUID_PREFIX) ? nqn.slice(UUID_PREFIX.length) : '';
  return isUuid(uuid) ? uuid.toLowerCase() : undefined;
}
