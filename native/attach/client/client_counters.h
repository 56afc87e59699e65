// Figures of the clients of one attached namespace. Written by its reactors, read by anyone.
#pragma once
#include <atomic>
#include <cstdint>

namespace nvmeof::attach {

struct ClientCounters {
  std::atomic<uint64_t> accepted{0};
  std::atomic<uint64_t> sent_away{0};  // refused, or broke the rules
  std::atomic<uint64_t> requests{0};
  std::atomic<uint64_t> live{0};  // clients
};

}  // namespace nvmeof::attach
