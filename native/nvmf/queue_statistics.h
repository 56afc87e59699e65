// What one I/O queue of a target did since it was bound, and how long its commands took from the
// capsule to the answer. On the reactor's thread; copied as a whole.
#pragma once
#include <array>
#include <cstdint>

#include "nvmf/log_linear.h"

namespace nvmeof::nvmf {

// Latencies in ns, up to 68 s, four buckets per power of two: the bound of a bucket is above its
// values by a quarter at most. Small enough to have one per queue. LatencyHistogram is the exact
// one, for the load generator.
class CoarseHistogram : public LogLinear<2, 36> {
 public:
  void record(uint64_t ns) { counts_[bucket_of(ns)]++; }
  uint64_t count_of(unsigned bucket) const { return counts_[bucket]; }

 private:
  std::array<uint64_t, kBuckets> counts_{};
};

struct QueueStatistics {
  uint64_t reads = 0, writes = 0, others = 0, errors = 0;
  uint64_t bytes_read = 0, bytes_written = 0;
  CoarseHistogram latency;  // of I/O commands, answered by native
};

}  // namespace nvmeof::nvmf
