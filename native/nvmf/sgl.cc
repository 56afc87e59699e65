// Parses SGL1 of a fabrics command (Base 4.3.2; which types may occur: NVMe RDMA Transport).
// Pure.
#include "nvmf/sgl.h"

#include "nvmf/nvme.h"

namespace nvmeof::nvmf {

Rejection parse_sgl(const uint8_t* sqe, bool in_capsule_allowed, uint32_t in_capsule,
                    DataBlock* out) {
  DataBlock block;
  block.address = load64(sqe + sqe::kSglAddress);
  const uint8_t type = sqe[sqe::kSglType];
  if (type == kSglKeyed || type == kSglKeyedInvalidate) {
    block.kind = DataBlock::Kind::Keyed;
    block.invalidate = type == kSglKeyedInvalidate;
    block.length = load32(sqe + sqe::kSglLength) & 0xFFFFFF;  // 24 bits, the key follows
    block.key = load32(sqe + sqe::kSglKey);
  } else if (type == kSglInCapsule && in_capsule_allowed) {
    block.kind = DataBlock::Kind::InCapsule;
    block.length = load32(sqe + sqe::kSglLength);
    if (block.address > in_capsule) return {status::kSglOffsetInvalid, sqe::kSglAddress};
    if (block.length > in_capsule - block.address)
      return {status::kSglLengthInvalid, sqe::kSglLength};
  } else {
    return {status::kSglTypeInvalid, sqe::kSglType};
  }
  *out = block;
  return {};
}

}  // namespace nvmeof::nvmf
