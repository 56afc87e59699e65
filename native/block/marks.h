// Marks on a file that several processes of this machine write to: each is a lock on one byte far
// beyond the end of any file, held by the open file description that the I/O goes through. A
// process tells the others by them which controllers may still write. The kernel drops a mark when
// nothing refers to the description any more: of a process that was killed, when its last request
// in flight has ended (io_uring, a thread in pwrite). JavaScript's thread; on local file systems
// these calls do not block.
#pragma once
#include <cstdint>

#include "reactor/result.h"

namespace nvmeof::block {

// Marks are numbers below this.
inline constexpr uint64_t kMarkEnd = uint64_t{1} << 62;

// Whether everybody who can write to this open file sees its locks: a regular file on a file system
// that one kernel alone has mounted. Not network, cluster and FUSE file systems; not block devices,
// which may be somebody else's too.
bool marks_reach_everybody(int fd);

// Several descriptions may hold the same mark. `path` is for the error.
Result<void> set_mark(int fd, uint64_t mark, bool on, const char* path);
// By another open file description, of this process or another.
Result<bool> marked_elsewhere(int fd, uint64_t mark, const char* path);

}  // namespace nvmeof::block
