/** The curves of the plots: depths and block sizes, ours and the floor. */
import type { Load, TargetShape } from './ours.ts';
import type { Parts, Sweep } from './parts.ts';

const DEPTHS = [1, 2, 4, 8, 16, 32, 64, 128];
const KIB = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
const FLOOR_KIB_MAX = 128;

export function sweeps(parts: Parts): Sweep[] {
  const byDepth = (
    id: string,
    title: string,
    where: TargetShape,
    rw: NonNullable<Load['rw']>,
  ): Sweep => ({
    ...{ id, title, axis: 'depth' },
    points: DEPTHS.map((depth) => ({ x: depth, subject: parts.ours(title, where, { depth, rw }) })),
  });
  const sides = ['read', 'write'] as const;
  return [
    byDepth('depth-read', 'read, memory', parts.memory, 'randread'),
    byDepth('depth-write', 'write, memory', parts.memory, 'randwrite'),
    byDepth('depth-mixed', 'half and half, memory', parts.memory, 'randrw'),
    byDepth('depth-file', 'read, page-cached file', parts.cachedFile, 'randread'),
    {
      ...{ id: 'depth-floor', title: 'floor, read', axis: 'depth' },
      points: DEPTHS.map((depth) => ({ x: depth, subject: parts.floor('read', depth) })),
    },
    ...sides.map((rw) => ({
      ...{ id: `size-${rw}`, title: `${rw}, memory`, axis: 'block size' as const },
      points: KIB.map((kib) => ({
        x: kib << 10,
        subject: parts.ours(rw, parts.memory, {
          ...{ depth: 32, bytes: kib << 10, rw: `rand${rw}` as const },
        }),
      })),
    })),
    ...sides.map((rw) => ({
      ...{ id: `size-floor-${rw}`, title: `floor, ${rw}`, axis: 'block size' as const },
      points: KIB.filter((kib) => kib <= FLOOR_KIB_MAX).map((kib) => ({
        x: kib << 10,
        subject: parts.floor(rw, 32, kib << 10),
      })),
    })),
  ];
}
