#include "block/backing.h"

#include "block/delay_backing.h"
#include "block/file_backing.h"
#include "block/memory_backing.h"

namespace nvmeof::block {

namespace {

Result<std::unique_ptr<Backing>> open_kind(const Options& options) {
  if (options.block_size != 512 && options.block_size != 4096)
    return Error{EINVAL, "block size " + std::to_string(options.block_size) +
                             " is not offered; use 512 or 4096"};
  if (options.kind == Kind::File || options.kind == Kind::BlockDevice) return open_file(options);
  if (options.size == 0 || options.size % options.block_size != 0)
    return Error{EINVAL, "size " + std::to_string(options.size) +
                             " is not a positive multiple of the block size " +
                             std::to_string(options.block_size)};
  return options.kind == Kind::Memory ? open_memory(options) : open_null(options);
}

}  // namespace

Result<std::unique_ptr<Backing>> open_backing(const Options& options) {
  auto opened = open_kind(options);
  if (!opened || options.delay_writes_ms == 0) return opened;
  return delay_writes(std::move(*opened), options.delay_writes_ms);
}

}  // namespace nvmeof::block
