// What a client is told of the namespace: its size, the sizes of blocks, and what commands it may
// send. Pure.
#pragma once
#include <cstdint>
#include <string>

#include "attach/namespace_lane.h"

namespace nvmeof::attach::nbd {

// The largest read or write. Clients that do not ask for block sizes rely on this much.
inline constexpr uint32_t kPayloadMax = 32u << 20;

struct Export {
  uint64_t size = 0;       // bytes
  uint32_t block_min = 0;  // offsets and lengths are multiples of it
  uint32_t block_preferred = 0;
  uint32_t block_max = 0;   // of reads and writes
  uint16_t flags = 0;       // transmission::
  std::string description;  // for a person

  static Export of(const Geometry& geometry, std::string description);
};

}  // namespace nvmeof::attach::nbd
