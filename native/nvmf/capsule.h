// A command capsule as it arrived, the checks that hold for every command, and the response
// capsule. Pure.
#pragma once
#include <cstdint>

#include "nvmf/nvme.h"
#include "nvmf/sgl.h"
#include "nvmf/status.h"

namespace nvmeof::nvmf {

// Which way data moves; as bits 1:0 of an opcode or FCTYPE say it (Base Figure 92).
enum class Transfer : uint8_t { None = 0, FromHost = 1, ToHost = 2, Both = 3 };

inline bool from_host(Transfer transfer) {
  return static_cast<uint8_t>(transfer) & 1;
}
inline bool to_host(Transfer transfer) {
  return static_cast<uint8_t>(transfer) & 2;
}

// The direction of any command, known or not.
Transfer transfer_of(const uint8_t* sqe);

// PSDT must say SGL and no fused bit may be set: FUSES is 0 (Base Figure 91).
Rejection check_flags(const uint8_t* sqe);

// A command that native does not execute: flags and, where it moves data, its SGL.
// `in_capsule`: data bytes received behind the SQE.
Rejection parse_control(const uint8_t* sqe, uint32_t in_capsule, Transfer* transfer,
                        DataBlock* block);

struct Response {
  uint64_t result;
  uint16_t sqhd, sqid, cid, status;
};
void encode_response(const Response& response, uint8_t out[kCqeBytes]);

}  // namespace nvmeof::nvmf
