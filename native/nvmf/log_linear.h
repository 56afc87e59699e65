// Buckets for values of any size: 2^SubBits of equal width per power of two, exact below 2^SubBits,
// values of more than Bits bits in the last one. Pure.
#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

namespace nvmeof::nvmf {

template <unsigned SubBits, unsigned Bits>
struct LogLinear {
  static constexpr unsigned kSub = 1u << SubBits;
  static constexpr unsigned kBuckets = (Bits - SubBits + 1) * kSub;
  static constexpr uint64_t kMax = (1ull << Bits) - 1;

  static constexpr unsigned bucket_of(uint64_t value) {
    value = std::min(value, kMax);
    if (value < kSub) return static_cast<unsigned>(value);
    const auto shift = static_cast<unsigned>(std::bit_width(value)) - 1 - SubBits;
    return (shift + 1) * kSub + static_cast<unsigned>((value >> shift) - kSub);
  }
  // The smallest value of a bucket.
  static constexpr uint64_t lower_bound(unsigned bucket) {
    if (bucket < kSub) return bucket;
    return (uint64_t{kSub} + bucket % kSub) << (bucket / kSub - 1);
  }
};

}  // namespace nvmeof::nvmf
