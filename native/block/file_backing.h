// Namespaces in a file or on a block device: opening, checking and locking here; the I/O is done by
// a UringChannel, or a ThreadChannel where io_uring is not allowed. Blocking calls only in
// open_file() and resize() (control thread).
#pragma once
#include <sys/types.h>

#include <atomic>

#include "block/backing.h"

namespace nvmeof::block {

Result<std::unique_ptr<Backing>> open_file(const Options& options);

// What a channel needs to know of its file.
struct FileHandle {
  int fd;
  bool block_device;
  bool direct;
  uint32_t memory_alignment;  // of buffers under O_DIRECT
  // Set when the file system refuses a kind of fallocate, so that it is asked only once.
  std::atomic<bool> no_zero_range{false}, no_punch_hole{false};
};

}  // namespace nvmeof::block
