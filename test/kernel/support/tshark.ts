/** Wireshark's dissectors on captures, as a judge that is not ours. */
import { execFileSync } from 'node:child_process';

function fields(file: string, filter: string, names: readonly string[]): string[] {
  const printed = execFileSync(
    'tshark',
    ['-r', file, '-Y', filter, '-T', 'fields', ...names.flatMap((name) => ['-e', name])],
    { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'], maxBuffer: 256 << 20 },
  );
  return printed.split('\n').filter((line) => line !== '');
}

export function countFrames(file: string, filter: string): number {
  return fields(file, filter, ['frame.number']).length;
}

/** Of each malformed frame: the opcode of the packet and whose dissector gave up. Each kind once. */
export function malformedKinds(file: string): string[] {
  const malformed = fields(file, '_ws.malformed', ['infiniband.bth.opcode', '_ws.malformed']);
  return [...new Set(malformed)].sort();
}
