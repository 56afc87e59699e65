// A cheap clock for latencies: the CPU's constant-rate counter where there is one (x86-64 with
// invariant TSC, arm64), else CLOCK_MONOTONIC. Any thread; ticks of different cores agree.
#pragma once
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace nvmeof::nvmf {

class CycleClock {
 public:
  // The first call measures the rate: 10 ms on x86-64.
  static const CycleClock& get();

  uint64_t ticks() const {
    if (!has_counter_) return monotonic_ns();
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t value;
    asm volatile("mrs %0, cntvct_el0" : "=r"(value));
    return value;
#else
    return monotonic_ns();
#endif
  }
  uint64_t to_ns(uint64_t ticks) const {
    return scale(ticks, ns_per_tick_);
  }
  uint64_t to_ticks(uint64_t ns) const {
    return scale(ns, ticks_per_ns_);
  }
  bool has_counter() const {
    return has_counter_;
  }

 private:
  static constexpr unsigned kFraction = 32;  // bits behind the point of the rates

  CycleClock();
  static uint64_t scale(uint64_t value, uint64_t rate) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(value) * rate) >> kFraction);
  }
  static uint64_t monotonic_ns() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
  }
  void set_rate(double ticks_per_second);

  bool has_counter_ = false;
  uint64_t ns_per_tick_ = 1ull << kFraction;
  uint64_t ticks_per_ns_ = 1ull << kFraction;
};

}  // namespace nvmeof::nvmf
