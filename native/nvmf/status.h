// Status values of completion queue entries as this target answers them, and which of them an errno
// of a backing becomes. A status here is a CQE's status field shifted right by one: SC in bits 7:0,
// SCT in 10:8, DNR in bit 14 (Base 4.2.3). Pure.
#pragma once
#include <cstdint>

#include "block/backing.h"
#include "wire/generated/nvme_wire.h"

namespace nvmeof::nvmf {

inline constexpr uint16_t kDoNotRetry = wire::kStatusDnr;

// Worth sending again, or never (DNR).
constexpr uint16_t again(wire::Status status) {
  return static_cast<uint16_t>(status);
}
constexpr uint16_t final(wire::Status status) {
  return static_cast<uint16_t>(again(status) | kDoNotRetry);
}

namespace status {
inline constexpr uint16_t kSuccess = again(wire::Status::kSuccess);
inline constexpr uint16_t kInvalidOpcode = final(wire::Status::kInvalidOpcode);
inline constexpr uint16_t kInvalidField = final(wire::Status::kInvalidField);
inline constexpr uint16_t kInternalError = again(wire::Status::kInternalError);
inline constexpr uint16_t kAbortRequested = again(wire::Status::kAbortRequested);
inline constexpr uint16_t kInvalidNamespace = final(wire::Status::kInvalidNamespace);
inline constexpr uint16_t kSglLengthInvalid = final(wire::Status::kSglDataLength);
inline constexpr uint16_t kSglTypeInvalid = final(wire::Status::kSglType);
inline constexpr uint16_t kSglOffsetInvalid = final(wire::Status::kSglOffset);
inline constexpr uint16_t kNamespaceWriteProtected = final(wire::Status::kNamespaceWriteProtected);
inline constexpr uint16_t kLbaOutOfRange = final(wire::Status::kLbaOutOfRange);
inline constexpr uint16_t kCapacityExceeded = final(wire::Status::kCapacityExceeded);
inline constexpr uint16_t kNamespaceNotReady = again(wire::Status::kNamespaceNotReady);
inline constexpr uint16_t kWriteFault = again(wire::Status::kWriteFault);
inline constexpr uint16_t kUnrecoveredReadError = again(wire::Status::kUnrecoveredRead);
inline constexpr uint16_t kCompareFailure = final(wire::Status::kCompareFailure);
}  // namespace status

inline constexpr uint16_t kNoParameter = 0xFFFF;

// Why a command is refused: the status, and the SQE's offending byte.
struct [[nodiscard]] Rejection {
  uint16_t status = status::kSuccess;
  uint16_t parameter = kNoParameter;
  explicit operator bool() const { return status != status::kSuccess; }
};

// The status for an errno value of a backing; 0 is success.
uint16_t status_of_error(int error, block::Operation operation);

}  // namespace nvmeof::nvmf
