/**
 * The doctor's checks of memory, io_uring and the build itself. `probe` opens a small backing through the native
 * part, which shows what a sandbox forbids in spite of the kernel's settings.
 */
import { fail, ok, warn } from './system-view.ts';
import type { Finding, SystemView } from './system-view.ts';

const MEBIBYTE = 1024 * 1024;
/** A namespace in a file registers the memory of the reactor that serves it, 86 MiB by default (docs/architecture.md). */
export const WANTED_LOCKED_MEMORY = 96 * MEBIBYTE;
const CAP_IPC_LOCK = 14n;

export function checkLockedMemory(view: SystemView): Finding[] {
  const subject = 'RLIMIT_MEMLOCK';
  const capabilities = /^CapEff:\s*([0-9a-f]+)$/m.exec(view.read('/proc/self/status') ?? '')?.[1];
  if (capabilities !== undefined && ((BigInt(`0x${capabilities}`) >> CAP_IPC_LOCK) & 1n) === 1n) {
    return [ok(subject, 'not limited: this process has CAP_IPC_LOCK')];
  }
  const limits = view.read('/proc/self/limits') ?? '';
  const soft = /^Max locked memory\s+(\S+)/m.exec(limits)?.[1];
  const remedy =
    'ulimit -l unlimited   (for good: a line "* - memlock unlimited" in /etc/security/limits.conf)';
  if (soft === undefined) return [warn(subject, 'cannot be read here', remedy)];
  if (soft === 'unlimited') return [ok(subject, 'unlimited')];
  const bytes = Number(soft);
  if (bytes >= WANTED_LOCKED_MEMORY) return [ok(subject, `${bytes} bytes`)];
  const message = `${bytes} bytes: io_uring buffers stay unregistered (a namespace in a file wants 86 MiB on each reactor)`;
  return [warn(subject, message, remedy)];
}

export interface ProbeResult {
  /** The native part could be loaded. */
  readonly built: boolean;
  /** How a file backing does its I/O, in native's words ("…, io_uring"), or why it failed. */
  readonly description: string;
}

export function checkNative(probe: ProbeResult): Finding[] {
  return probe.built
    ? [ok('native part', 'built and loads')]
    : [fail('native part', probe.description, 'npm run setup')];
}

export function checkIoUring(view: SystemView, probe: ProbeResult): Finding[] {
  const subject = 'io_uring';
  const disabled = view.readNumber('/proc/sys/kernel/io_uring_disabled');
  const remedy = 'sudo sysctl -w kernel.io_uring_disabled=0';
  const fallback = 'file I/O falls back to threads, which is slower';
  if (disabled === 2) return [warn(subject, `disabled for everybody; ${fallback}`, remedy)];
  if (probe.built && probe.description.includes('io_uring')) {
    return [ok(subject, 'works')];
  }
  if (disabled === 1) {
    return [warn(subject, `allowed to privileged processes only; ${fallback}`, remedy)];
  }
  if (!probe.built)
    return [ok(subject, 'not forbidden by sysctl; not tried, as native is missing')];
  const filtered = /^Seccomp:\s*2$/m.test(view.read('/proc/self/status') ?? '');
  return [
    warn(
      subject,
      filtered
        ? `a seccomp filter (container runtime, systemd) seems to forbid it; ${fallback}`
        : `cannot be used here (${probe.description}); ${fallback}`,
      filtered
        ? 'run the container with a seccomp profile that allows io_uring_setup, _enter and _register'
        : 'a kernel of 5.11 or newer with io_uring is needed',
    ),
  ];
}

export function checkHugePages(view: SystemView): Finding[] {
  const subject = 'huge pages';
  const total = /^HugePages_Total:\s+(\d+)/m.exec(view.read('/proc/meminfo') ?? '')?.[1];
  const transparent = view.read('/sys/kernel/mm/transparent_hugepage/enabled') ?? '';
  const mode = /\[(\w+)\]/.exec(transparent)?.[1] ?? 'unavailable';
  const text = `${total ?? '0'} reserved, transparent huge pages: ${mode}`;
  if ((total !== undefined && Number(total) > 0) || mode === 'always' || mode === 'madvise') {
    return [ok(subject, text)];
  }
  const remedy = 'echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled';
  return [warn(subject, `${text}; large buffers cost more TLB misses`, remedy)];
}
