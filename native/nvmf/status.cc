// The table from a backing's errno to an NVMe status. Pure.
#include "nvmf/status.h"

#include <cerrno>

namespace nvmeof::nvmf {

namespace {

struct Row {
  int error;
  uint16_t for_read, for_write;
};

// Out of range and EFAULT on a read: the store ended before the namespace did (a truncated file).
constexpr Row kRows[] = {
    {ENOSPC, status::kInternalError, status::kCapacityExceeded},
    {EDQUOT, status::kInternalError, status::kCapacityExceeded},
    {EFBIG, status::kUnrecoveredReadError, status::kCapacityExceeded},
    {EIO, status::kUnrecoveredReadError, status::kWriteFault},
    {ENODATA, status::kUnrecoveredReadError, status::kWriteFault},
    {EREMOTEIO, status::kUnrecoveredReadError, status::kWriteFault},
    {ERANGE, status::kUnrecoveredReadError, status::kWriteFault},
    {EROFS, status::kNamespaceWriteProtected, status::kNamespaceWriteProtected},
    {EOPNOTSUPP, status::kInvalidOpcode, status::kInvalidOpcode},
    {ECANCELED, status::kAbortRequested, status::kAbortRequested},
};

}  // namespace

uint16_t status_of_error(int error, block::Operation operation) {
  if (error == 0) return status::kSuccess;
  for (const Row& row : kRows)
    if (row.error == error)
      return operation == block::Operation::Read ? row.for_read : row.for_write;
  return status::kInternalError;
}

}  // namespace nvmeof::nvmf
