// The one SGL descriptor of a fabrics command (MSDBD is 1): keyed, or in the capsule. Pure.
#pragma once
#include <cstdint>

#include "nvmf/status.h"

namespace nvmeof::nvmf {

struct DataBlock {
  enum class Kind : uint8_t { None, Keyed, InCapsule };
  Kind kind = Kind::None;
  bool invalidate = false;  // answer with SEND_WITH_INV of `key`
  uint32_t key = 0;
  uint32_t length = 0;
  uint64_t address = 0;  // the host's address; in the capsule: offset from the end of the SQE
};

// Reads SGL1 of `sqe`. `in_capsule`: data bytes that came with the capsule and that this direction
// may use. Refuses other types, and in-capsule blocks that leave the received bytes.
Rejection parse_sgl(const uint8_t* sqe, bool in_capsule_allowed, uint32_t in_capsule,
                    DataBlock* out);

}  // namespace nvmeof::nvmf
