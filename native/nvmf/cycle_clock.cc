// Finds out whether the CPU's counter may serve as a clock, and its rate.
#include "nvmf/cycle_clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace nvmeof::nvmf {

const CycleClock& CycleClock::get() {
  static const CycleClock clock;
  return clock;
}

void CycleClock::set_rate(double ticks_per_second) {
  const double one = static_cast<double>(1ull << kFraction);
  ns_per_tick_ = static_cast<uint64_t>(1e9 / ticks_per_second * one);
  ticks_per_ns_ = static_cast<uint64_t>(ticks_per_second / 1e9 * one);
  has_counter_ = true;
}

CycleClock::CycleClock() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // CPUID 80000007h EDX bit 8: invariant TSC.
  if (__get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) == 0 || (edx & 1u << 8) == 0) return;
  const uint64_t begin_ns = monotonic_ns(), begin = __rdtsc();
  uint64_t end_ns = begin_ns;
  while (end_ns - begin_ns < 10'000'000) end_ns = monotonic_ns();
  const uint64_t end = __rdtsc();
  set_rate(static_cast<double>(end - begin) * 1e9 / static_cast<double>(end_ns - begin_ns));
#elif defined(__aarch64__)
  uint64_t rate = 0;
  asm volatile("mrs %0, cntfrq_el0" : "=r"(rate));
  if (rate != 0) set_rate(static_cast<double>(rate));
#endif
}

}  // namespace nvmeof::nvmf
