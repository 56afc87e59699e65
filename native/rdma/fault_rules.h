// Faults that a device injects into its own packets, to test what becomes of connections: what is
// asked for, and what of it is possible. Data, any thread. soft/fault_link.h does it.
#pragma once
#include <sys/socket.h>

#include <cstdint>
#include <vector>

#include "reactor/result.h"

namespace nvmeof::rdma {

inline constexpr size_t kFaultRulesMax = 16;
inline constexpr uint32_t kFaultQueueMax = 1u << 16;                 // packets
inline constexpr uint64_t kFaultDelayMaxNs = 60ull * 1'000'000'000;  // of each time
inline constexpr uint32_t kFaultQueueDefault = 4096;
inline constexpr uint64_t kFaultReorderNs = 1'000'000;

// Of the first rule that fits a packet's direction and peer, all faults apply; of the others, none.
struct FaultRule {
  bool in = true, out = true;
  sockaddr_storage peer{};  // AF_UNSPEC: every peer. The port does not count
  // Probabilities, 0 to 1. `drop` of 1 is a black hole: ICMP of the peer does not come through
  // either.
  double drop = 0, duplicate = 0, reorder = 0;
  // Every packet waits `delay` and a random time up to `jitter`, and keeps its place.
  uint64_t delay_ns = 0, jitter_ns = 0;
  // A packet that is reordered waits so long besides, while others pass it.
  uint64_t reorder_ns = kFaultReorderNs;
};

struct FaultRules {
  // The same seed and the same packets meet the same faults.
  uint64_t seed = 1;
  // What may wait in each direction of each reactor; what comes beyond is dropped and counted.
  uint32_t queue_packets = kFaultQueueDefault;
  std::vector<FaultRule> rules;  // empty: no faults
};

// EINVAL with the field that is wrong, such as "rules[2].drop".
Result<void> check(const FaultRules& rules);

}  // namespace nvmeof::rdma
