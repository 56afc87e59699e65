// The progress of one request on a file, kept in Request::scratch: both channels continue after
// short transfers and fall back step by step where a file system lacks an operation.
#pragma once
#include <fcntl.h>
#include <linux/falloc.h>

#include <cstdlib>
#include <new>

#include "block/file_backing.h"

namespace nvmeof::block {

enum class Step : uint8_t {
  Transfer,   // read or write
  ZeroRange,  // fallocate(ZERO_RANGE)
  PunchHole,  // fallocate(PUNCH_HOLE)
  ZeroWrite,  // write zeros piece by piece
  Sync,       // fdatasync: Flush, or the FUA of a write-zeroes
};

struct Progress {
  uint64_t done_bytes;  // of Transfer and ZeroWrite
  uint8_t* bounce;      // aligned copy for O_DIRECT, or nullptr
  Step step;
  bool held_back;  // its lease was over: the kernel was not asked to do the step
};
static_assert(sizeof(Progress) <= sizeof(Request::scratch));

inline Progress& progress_of(Request* request) {
  return *reinterpret_cast<Progress*>(request->scratch);
}

inline constexpr int kZeroRangeMode = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE;
inline constexpr int kPunchHoleMode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
inline constexpr uint64_t kZeroBytes = 1 << 20;
const uint8_t* zero_page();  // kZeroBytes of zeros, page aligned

// The first step of a request.
Step first_step(const Request& request, const FileHandle& file);
// What follows when a step ended well (result >= 0) or badly (-errno). True: progress.step is to be
// done next; false: the request is over and `error` is its result.
bool next_step(Request* request, FileHandle* file, int64_t result, int* error);

// The piece of memory that a continued transfer goes on with: within one iovec.
iovec remaining_piece(const Request& request, uint64_t done_bytes);

// O_DIRECT: a request whose memory does not have the file's alignment goes through an aligned copy.
bool needs_bounce(const Request& request, const FileHandle& file);
bool take_bounce(Request* request);  // false: out of memory
void end_bounce(Request* request, bool copy_back);

}  // namespace nvmeof::block
