// Checks of command capsules and the encoding of response capsules. Pure.
#include "nvmf/capsule.h"

namespace nvmeof::nvmf {

Transfer transfer_of(const uint8_t* sqe) {
  const uint8_t code = sqe[sqe::kOpcode] == kOpcodeFabrics ? sqe[sqe::kFctype] : sqe[sqe::kOpcode];
  return static_cast<Transfer>(code & 3);
}

Rejection check_flags(const uint8_t* sqe) {
  const uint8_t flags = sqe[sqe::kFlags];
  if ((flags & kPsdtMask) != kPsdtSgl || (flags & kFuseMask) != 0)
    return {status::kInvalidField, sqe::kFlags};
  return {};
}

Rejection parse_control(const uint8_t* sqe, uint32_t in_capsule, Transfer* transfer,
                        DataBlock* block) {
  if (const Rejection refused = check_flags(sqe)) return refused;
  *transfer = transfer_of(sqe);
  *block = {};
  // A command without data may leave its SGL undefined: nothing is read from it.
  if (*transfer == Transfer::None) return {};
  return parse_sgl(sqe, *transfer == Transfer::FromHost, in_capsule, block);
}

void encode_response(const Response& response, uint8_t out[kCqeBytes]) {
  store64(out + cqe::kResult, response.result);
  store16(out + cqe::kSqhd, response.sqhd);
  store16(out + cqe::kSqid, response.sqid);
  store16(out + cqe::kCid, response.cid);
  store16(out + cqe::kStatus, static_cast<uint16_t>(response.status << 1));
}

}  // namespace nvmeof::nvmf
