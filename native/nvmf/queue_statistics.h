// What one I/O queue of a target did since it was bound, and how long its commands took from the
// capsule to the answer. On the reactor's thread; copied as a whole.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

namespace nvmeof::nvmf {

// Latencies in log-linear buckets, four per power of two: the bound of a bucket is above its values
// by a quarter at most. Small enough to have one per queue. LatencyHistogram is the exact one, for
// the load generator.
class CoarseHistogram {
 public:
  static constexpr unsigned kSubBits = 2;
  static constexpr unsigned kSub = 1u << kSubBits;
  static constexpr unsigned kBuckets = (36 - kSubBits + 1) * kSub;  // up to 68 s

  void record(uint64_t ns) { counts_[bucket_of(ns)]++; }
  uint64_t count_of(unsigned bucket) const { return counts_[bucket]; }
  // The smallest value of a bucket, ns.
  static constexpr uint64_t lower_bound(unsigned bucket) {
    if (bucket < kSub) return bucket;
    return (uint64_t{kSub} + bucket % kSub) << (bucket / kSub - 1);
  }
  static constexpr unsigned bucket_of(uint64_t ns) {
    if (ns < kSub) return static_cast<unsigned>(ns);
    const auto shift = static_cast<unsigned>(std::bit_width(ns)) - 1 - kSubBits;
    const unsigned bucket = (shift + 1) * kSub + static_cast<unsigned>((ns >> shift) - kSub);
    return bucket < kBuckets ? bucket : kBuckets - 1;
  }

 private:
  std::array<uint64_t, kBuckets> counts_{};
};

struct QueueStatistics {
  uint64_t reads = 0, writes = 0, others = 0, errors = 0;
  uint64_t bytes_read = 0, bytes_written = 0;
  CoarseHistogram latency;  // of I/O commands, answered by native
};

}  // namespace nvmeof::nvmf
