// Latencies in nanoseconds, counted in log-linear buckets: 128 per power of two, so that a reported
// value is off by less than 0.4 %. Fixed size, no allocation; one thread writes, the result is read
// and merged when it is done.
#pragma once
#include <array>
#include <cstdint>

#include "nvmf/log_linear.h"

namespace nvmeof::nvmf {

class LatencyHistogram {
 public:
  using Buckets = LogLinear<7, 41>;
  // Longer values (36 minutes) count as this one.
  static constexpr uint64_t kMax = Buckets::kMax;

  void record(uint64_t ns) {
    if (ns > kMax) ns = kMax;
    counts_[Buckets::bucket_of(ns)]++;
    count_++;
    sum_ += ns;
    sum_of_squares_ += static_cast<unsigned __int128>(ns) * ns;
    if (ns < min_) min_ = ns;
    if (ns > max_) max_ = ns;
  }
  void merge(const LatencyHistogram& other);
  void clear() { *this = LatencyHistogram(); }

  uint64_t count() const { return count_; }
  // All 0 while nothing was recorded.
  uint64_t min() const { return count_ != 0 ? min_ : 0; }
  uint64_t max() const { return max_; }
  double mean() const;
  double stddev() const;  // of the population
  // The smallest recorded value that `percent` of all values do not exceed, to the bucket's width.
  uint64_t percentile(double percent) const;

 private:
  static uint64_t middle_of(unsigned bucket);

  std::array<uint64_t, Buckets::kBuckets> counts_{};
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  unsigned __int128 sum_of_squares_ = 0;
  uint64_t min_ = ~0ull;
  uint64_t max_ = 0;
};

}  // namespace nvmeof::nvmf
