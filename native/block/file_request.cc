#include "block/file_request.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace nvmeof::block {

const uint8_t* zero_page() {
  alignas(4096) static const uint8_t zeros[kZeroBytes] = {};
  return zeros;
}

Step first_step(const Request& request, const FileHandle& file) {
  switch (request.operation) {
    case Operation::Read:
    case Operation::Write:
      return Step::Transfer;
    case Operation::Flush:
      return Step::Sync;
    case Operation::Deallocate:
      return Step::PunchHole;
    case Operation::WriteZeroes:
      break;
  }
  const bool punch = !file.no_punch_hole.load(std::memory_order_relaxed);
  if (request.may_deallocate && punch) return Step::PunchHole;
  if (!file.no_zero_range.load(std::memory_order_relaxed)) return Step::ZeroRange;
  return punch ? Step::PunchHole : Step::ZeroWrite;
}

namespace {

bool unsupported(int64_t result) {
  return result == -EOPNOTSUPP || result == -ENOSYS || result == -ENOTTY;
}

// FUA of the operations that cannot carry it themselves.
bool then_sync(Progress& progress, const Request& request, int* error) {
  *error = 0;
  if (!request.fua || request.operation != Operation::WriteZeroes) return false;
  progress.step = Step::Sync;
  return true;
}

bool after_transfer(Request* request, int64_t result, int* error) {
  Progress& progress = progress_of(request);
  // Nothing more to read although the range was checked: the file was cut while it is exported.
  *error = result < 0 ? static_cast<int>(-result) : result == 0 ? ERANGE : 0;
  if (*error != 0) return false;
  progress.done_bytes += static_cast<uint64_t>(result);
  return progress.done_bytes < request->length;
}

}  // namespace

bool next_step(Request* request, FileHandle* file, int64_t result, int* error) {
  Progress& progress = progress_of(request);
  switch (progress.step) {
    case Step::Transfer:
      return after_transfer(request, result, error);
    case Step::ZeroWrite:
      if (after_transfer(request, result, error)) return true;
      return *error == 0 && then_sync(progress, *request, error);
    case Step::ZeroRange:
      if (!unsupported(result)) break;
      file->no_zero_range.store(true, std::memory_order_relaxed);
      progress.step = first_step(*request, *file);
      return true;
    case Step::PunchHole:
      if (!unsupported(result)) break;
      file->no_punch_hole.store(true, std::memory_order_relaxed);
      *error = 0;  // Deallocate is a hint: not doing it is success
      if (request->operation == Operation::Deallocate) return false;
      progress.step = first_step(*request, *file);
      return true;
    case Step::Sync:
      *error = result < 0 ? static_cast<int>(-result) : 0;
      return false;
  }
  *error = result < 0 ? static_cast<int>(-result) : 0;
  return *error == 0 && then_sync(progress, *request, error);
}

iovec remaining_piece(const Request& request, uint64_t done_bytes) {
  const Progress& progress = *reinterpret_cast<const Progress*>(request.scratch);
  if (progress.bounce)
    return {progress.bounce + done_bytes, static_cast<size_t>(request.length - done_bytes)};
  for (uint32_t i = 0; i < request.iov_count; i++) {
    const iovec& v = request.iov[i];
    if (done_bytes < v.iov_len)
      return {static_cast<uint8_t*>(v.iov_base) + done_bytes, v.iov_len - done_bytes};
    done_bytes -= v.iov_len;
  }
  return {nullptr, 0};
}

bool needs_bounce(const Request& request, const FileHandle& file) {
  if (!file.direct ||
      (request.operation != Operation::Read && request.operation != Operation::Write))
    return false;
  for (uint32_t i = 0; i < request.iov_count; i++)
    if ((reinterpret_cast<uintptr_t>(request.iov[i].iov_base) | request.iov[i].iov_len) %
            file.memory_alignment !=
        0)
      return true;
  return false;
}

bool take_bounce(Request* request) {
  Progress& progress = progress_of(request);
  progress.bounce =
      static_cast<uint8_t*>(aligned_alloc(4096, (request->length + 4095) / 4096 * 4096));
  if (!progress.bounce) return false;
  if (request->operation == Operation::Write) {
    uint8_t* to = progress.bounce;
    for (uint32_t i = 0; i < request->iov_count; i++) {
      std::memcpy(to, request->iov[i].iov_base, request->iov[i].iov_len);
      to += request->iov[i].iov_len;
    }
  }
  return true;
}

void end_bounce(Request* request, bool copy_back) {
  Progress& progress = progress_of(request);
  if (!progress.bounce) return;
  if (copy_back && request->operation == Operation::Read) {
    const uint8_t* from = progress.bounce;
    for (uint32_t i = 0; i < request->iov_count; i++) {
      std::memcpy(request->iov[i].iov_base, from, request->iov[i].iov_len);
      from += request->iov[i].iov_len;
    }
  }
  free(progress.bounce);
  progress.bounce = nullptr;
}

}  // namespace nvmeof::block
