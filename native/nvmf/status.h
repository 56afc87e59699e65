// Status values of completion queue entries as this target answers them, and which of them an errno
// of a backing becomes. A status here is a CQE's status field shifted right by one: SC in bits 7:0,
// SCT in 10:8, DNR in bit 14 (Base 4.2.3). Pure.
#pragma once
#include <cstdint>

#include "block/backing.h"

namespace nvmeof::nvmf {

inline constexpr uint16_t kDoNotRetry = 0x4000;

namespace status {
inline constexpr uint16_t kSuccess = 0;
inline constexpr uint16_t kInvalidOpcode = 0x0001 | kDoNotRetry;
inline constexpr uint16_t kInvalidField = 0x0002 | kDoNotRetry;
inline constexpr uint16_t kInternalError = 0x0006;
inline constexpr uint16_t kAbortRequested = 0x0007;
inline constexpr uint16_t kInvalidNamespace = 0x000B | kDoNotRetry;
inline constexpr uint16_t kSglLengthInvalid = 0x000F | kDoNotRetry;
inline constexpr uint16_t kSglTypeInvalid = 0x0011 | kDoNotRetry;
inline constexpr uint16_t kSglOffsetInvalid = 0x0016 | kDoNotRetry;
inline constexpr uint16_t kNamespaceWriteProtected = 0x0020 | kDoNotRetry;
inline constexpr uint16_t kLbaOutOfRange = 0x0080 | kDoNotRetry;
inline constexpr uint16_t kCapacityExceeded = 0x0081 | kDoNotRetry;
inline constexpr uint16_t kNamespaceNotReady = 0x0082;
inline constexpr uint16_t kWriteFault = 0x0280;
inline constexpr uint16_t kUnrecoveredReadError = 0x0281;
inline constexpr uint16_t kCompareFailure = 0x0285 | kDoNotRetry;
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
