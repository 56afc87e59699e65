// Buckets back to values, moments and percentiles of LatencyHistogram; only used when a run is
// over.
#include "nvmf/latency_histogram.h"

#include <algorithm>
#include <cmath>

namespace nvmeof::nvmf {

void LatencyHistogram::merge(const LatencyHistogram& other) {
  for (unsigned i = 0; i < Buckets::kBuckets; i++) counts_[i] += other.counts_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  sum_of_squares_ += other.sum_of_squares_;
  min_ = std::min(min_, other.min_);
  max_ = std::max(max_, other.max_);
}

double LatencyHistogram::mean() const {
  return count_ != 0 ? static_cast<double>(sum_) / static_cast<double>(count_) : 0;
}

double LatencyHistogram::stddev() const {
  if (count_ == 0) return 0;
  // long double: with values near 2^41 the squares do not fit in 53 bits.
  const auto n = static_cast<long double>(count_);
  const long double mean = static_cast<long double>(sum_) / n;
  const long double variance = static_cast<long double>(sum_of_squares_) / n - mean * mean;
  return variance > 0 ? static_cast<double>(std::sqrt(variance)) : 0;
}

uint64_t LatencyHistogram::middle_of(unsigned bucket) {
  const uint64_t low = Buckets::lower_bound(bucket);
  return low + (Buckets::lower_bound(bucket + 1) - 1 - low) / 2;
}

uint64_t LatencyHistogram::percentile(double percent) const {
  if (count_ == 0) return 0;
  // The rank is exact for the percentages we report; 1e-9 keeps 99.9 % of 1000 at 999.
  const double wanted = std::ceil(static_cast<double>(count_) * percent / 100 - 1e-9);
  const uint64_t rank =
      std::clamp(static_cast<uint64_t>(std::max(wanted, 1.0)), uint64_t{1}, count_);
  uint64_t seen = 0;
  for (unsigned i = 0; i < Buckets::kBuckets; i++) {
    seen += counts_[i];
    if (seen >= rank) return std::clamp(middle_of(i), min_, max_);
  }
  return max_;
}

}  // namespace nvmeof::nvmf
