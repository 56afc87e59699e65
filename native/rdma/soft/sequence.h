// Packet sequence numbers. The wire has 24 bits; inside, a number is kept 64 bits wide and never
// wraps, so that comparing is plain `<`. expand() puts a wire PSN next to a known sequence.
#pragma once
#include <cstdint>

#include "rdma/soft/packet.h"

namespace nvmeof::rdma::soft {

inline constexpr uint64_t kPsnSpan = 1ull << 24;
// Never more than this outstanding: beyond half the PSN space, old and new cannot be told apart.
inline constexpr uint64_t kPsnWindow = kPsnSpan / 4;

// One whole span above zero, so that sequences a little before the first exist too.
inline uint64_t first_sequence(uint32_t psn) {
  return kPsnSpan + (psn & kMask24);
}

inline uint32_t wire_psn(uint64_t sequence) {
  return static_cast<uint32_t>(sequence) & kMask24;
}

// The sequence nearest to `reference` (within half the PSN space) that has this PSN on the wire.
inline uint64_t expand(uint32_t psn, uint64_t reference) {
  return reference + static_cast<uint64_t>(
                         static_cast<int64_t>(psn_diff(psn, static_cast<uint32_t>(reference))));
}

}  // namespace nvmeof::rdma::soft
